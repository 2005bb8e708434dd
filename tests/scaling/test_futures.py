import numpy as np
import pytest
from simulated_runs import fallen, run

from scalerl.reading.curves import Curve, fit, forecast, sigmoid
from scalerl.reading.curves.counts import LATER_FALL, TAKE_OFF
from scalerl.reading.curves.estimate import quantiles
from scalerl.reading.curves.falls import fall_of, has_fallen, points_before_fall
from scalerl.reading.curves.families import LEVEL, NOT_BEGUN, RETURN
from scalerl.reading.curves.noise import local_noise
from scalerl.reading.curves.posterior import EVEN_NOISE, STAYS_AFTER_FALL, posterior, prior_odds, take_off_rate


def flat(seed=0, noise=0.05):
    return Curve(np.arange(25.0), 0.4 + noise * np.random.default_rng(seed).standard_normal(25))


def test_a_clean_rise_is_the_law_alone():
    fitted = fit(run())
    assert fitted.posterior.stay_probability == 0
    assert fitted.predict([32_000.0]).mean == pytest.approx(
        fitted.draws.levels(np.array([32_000.0])).mean(axis=1), abs=1e-4
    )


def test_a_fallen_run_is_forecast_to_stay_down_and_its_ceiling_is_not_identified():
    fitted = fit(fallen())
    assert fitted.posterior.fallen and fitted.posterior.stay_probability > 0.5
    # the law alone forecasts a recovery to 0.4 or more
    assert fitted.draws.levels(np.array([60.0])).mean() > 0.33
    assert fitted.predict([60.0]).mean[0] < 0.28
    assert not fitted.identified
    assert "has fallen and stays down" in str(forecast(fitted))


def test_noise_around_a_level_is_forecast_to_stay_there():
    fitted = fit(flat())
    assert fitted.posterior.stay_probability > 0.5
    assert fitted.predict([50.0]).mean[0] == pytest.approx(0.4, abs=0.04)
    assert not fitted.identified


def test_a_climb_and_a_level_are_weighted_by_evidence_and_prior_odds():
    for curve in (flat(), flat(3, 0.02), run(points=9, last=4000.0, noise=0.08)):
        drawn = fit(curve).posterior
        odds = prior_odds(curve) * np.exp(-drawn.climb)
        assert drawn.stay_probability == pytest.approx(odds / (1 + odds) if odds > 0.06 else 0.0, abs=1e-3)
    assert fit(flat()).posterior.climb < 0 < fit(run(noise=0.04)).posterior.climb


def alternating(noise, points=21):
    """Return an alternating curve: second differences of 4 amplitudes, noise of 1.4826 * 4 / sqrt(6) amplitudes."""
    amplitude = noise * np.sqrt(6) / 4 / 1.4826
    return Curve(np.arange(points, dtype=float), 0.5 + amplitude * (-1.0) ** np.arange(points))


def test_the_odds_of_a_level_grow_with_the_square_of_the_noise_up_to_those_after_a_fall():
    assert prior_odds(alternating(EVEN_NOISE)) == pytest.approx(1.0)
    assert prior_odds(alternating(EVEN_NOISE / 5)) == pytest.approx(0.04)
    assert prior_odds(alternating(0.0)) == pytest.approx((0.001 / EVEN_NOISE) ** 2)  # as for a noise of 0.001
    assert prior_odds(alternating(0.2)) == pytest.approx(0.77 / 0.23)
    assert pytest.approx(20 / 26, abs=0.01) == STAYS_AFTER_FALL
    assert prior_odds(fallen()) == pytest.approx(0.77 / 0.23)


def test_a_fall_counts_only_beyond_the_noise():
    # the best mean of three is 0.50, the last one 0.38: a fall by 0.12
    metric = np.array([0.4] * 6 + [0.5] * 6 + [0.38] * 4)
    assert has_fallen(Curve(np.arange(16.0), metric))
    # after eight points with second differences of 0.32 the noise is 0.08 or more, and the fall below three times that
    shaken = np.concatenate([np.tile([0.5, 0.34], 8), metric])
    assert local_noise(shaken) > 0.04
    assert not has_fallen(Curve(np.arange(32.0), shaken))


def test_a_run_with_little_noise_and_no_climb_takes_off_at_the_rate_of_such_runs():
    still = fit(
        Curve(np.arange(12.0), [0.333, 0.333, 0.332, 0.333, 0.334, 0.333, 0.333, 0.332, 0.333, 0.333, 0.334, 0.333])
    )
    drawn = still.posterior
    begun_D = ~drawn.of(NOT_BEGUN.name)
    rate_D = take_off_rate(drawn)[begun_D]
    assert set(rate_D.round(3)) <= {0.5, 0.0, round(3 / 29, 3)} and (rate_D == 0.5).mean() > 0.5
    # half take off in one doubling, and half of the others in the next
    chance_D = 1 - (1 - rate_D) ** 2
    before_D = drawn.wide_D[begun_D] / (1 - chance_D)
    assert drawn.wide_D[~begun_D].sum() == pytest.approx(before_D @ chance_D) and before_D.sum() == pytest.approx(1.0)
    assert drawn.mean_D[~begun_D].sum() == 0.0
    # none has begun at the last point, and all have ended after two and a half doublings
    now_D, then_D = drawn.levels(12.0 * np.array([0.917, 2.0**2.5]))[:, ~begun_D] - 0.333
    assert np.abs(now_D).max() < 0.02 and np.quantile(then_D, [0.25, 0.75]) == pytest.approx([0.167, 0.5], abs=0.03)
    assert still.predict([24.0]).high[0] > 0.6
    assert str(TAKE_OFF["other"]) == "3 of 29" and take_off_rate(fit(flat()).posterior).max() == pytest.approx(3 / 29)


def test_the_chance_of_a_later_fall_is_stated_and_is_not_in_the_band():
    noisy = fit(run(noise=0.04, seed=4))
    assert noisy.posterior.later_fall == LATER_FALL["noisy"] and fit(run()).posterior.later_fall == LATER_FALL["smooth"]
    # a fall is at least 0.1 of the range, and 4 of 51 are more than the 5% below the band
    assert noisy.predict([32_000.0]).low[0] > noisy.predict([16_000.0]).low[0] - 0.05
    assert "4 of 51 public runs that looked like this fell later; the band leaves this out" in str(forecast(noisy))


@pytest.mark.parametrize("made", [run(noise=0.04, seed=4), flat(noise=0.003), fallen()])
def test_the_band_at_a_compute_does_not_depend_on_the_others_that_are_asked_for(made):
    fitted, last = fit(made), made.last_compute
    for noise in (False, True):
        alone = fitted.predict([2 * last], noise=noise)
        grid = fitted.predict(np.append(np.geomspace(last / 50, 4 * last, 40), 2 * last), noise=noise)
        assert (alone.low[0], alone.mean[0], alone.high[0]) == pytest.approx(
            (grid.low[-1], grid.mean[-1], grid.high[-1])
        )


def creeping(drift, seed=0, noise=0.004):
    """Return a climb that has ended at 0.6, plus a rise by `drift` in proportion to compute, to compute 1."""
    compute = np.linspace(0, 1, 41)
    level = sigmoid(compute, 0.6, 2.5, 0.06, 0.2) + drift * compute
    return Curve(compute, level + noise * np.random.default_rng(seed).standard_normal(41))


def test_a_creep_goes_on_in_proportion_to_compute():
    seen = fit(creeping(0.05, noise=0.002))
    assert seen.posterior.departures.get("creep", 0.0) > 0.5
    assert seen.predict([4.0]).high[0] > 0.75  # truth: 0.80


def test_a_run_that_shows_no_climb_may_stay_in_its_interval():
    # the prior odds are far below one, so the mean only rises; half of the public runs without a climb never rose
    still = posterior(flat(noise=0.002))
    # what has not begun is from draws of the law and of a level alike
    assert still.stay_probability == 0 and still.wide_D[still.of(LEVEL.name)].sum() > 0.1
    assert LEVEL.name not in posterior(run()).families


@pytest.mark.parametrize("level", [0.01, 1.0])
def test_no_band_leaves_the_bounds(level):
    noise = 0.02 * np.random.default_rng(1).standard_normal(20)
    fitted = fit(Curve(np.arange(20.0), np.clip(level + noise, 0, 1)))
    for with_noise in (False, True):
        band = fitted.predict(np.geomspace(1, 200, 12), noise=with_noise)
        assert not ((band.low < 0) | (band.high > 1) | (band.low > band.high)).any()


def test_an_excursion_decays_with_the_autocorrelation():
    rng = np.random.default_rng(5)
    compute, noise = np.arange(41.0), np.zeros(41)
    for i in range(1, 41):
        noise[i] = 0.9 * noise[i - 1] + 0.02 * rng.standard_normal()
    noise += 0.1 - noise[-1]  # the noise at the end is 0.1
    fitted = fit(Curve(compute, sigmoid(compute, 0.6, 2.0, 5.0, 0.1) + noise))
    law = fitted.draws.levels(np.array([40.0, 41.0, 120.0])).mean(axis=1)
    ahead = fitted.predict([40.0, 41.0, 120.0]).mean
    away = (ahead - law) / (fitted.curve.metric[-1] - law[0])  # shares of the distance of the last point from the curve
    assert 0.5 < away[1] < away[0] < 1.0 and away[2] < 0.3


@pytest.mark.parametrize("values", [[0.0] * 5, [0.3] * 5 + [0.3, 0.31, 0.3]])
def test_equal_values_at_the_start_give_a_wide_forecast(values):
    fitted = fit(Curve(np.arange(1.0, len(values) + 1), values))
    band = fitted.predict([2.0 * len(values)], noise=True)
    assert band.low[0] <= values[-1] <= band.high[0]
    assert band.high[0] - values[-1] > 0.1  # a take-off is possible
    assert not fitted.identified


def test_a_ceiling_from_a_second_rise_is_not_identified():
    compute = np.linspace(0, 1, 41)
    level = sigmoid(compute, 0.45, 2.5, 0.08, 0.2) + sigmoid(compute, 0.3, 6.0, 0.6, 0.0)
    fitted = fit(Curve(compute, level + 0.003 * np.random.default_rng(0).standard_normal(41)))
    assert fitted.posterior.departures["second rise"] > 0.5
    assert not fitted.identified


def test_the_ceiling_is_not_identified_if_the_last_points_contradict_the_curve():
    curve = run(noise=0.002)
    metric = curve.metric.copy()
    metric[-3:] -= 0.03
    fitted = fit(Curve(curve.compute, metric))
    assert not fitted.identified and not has_fallen(fitted.curve)


def dropped(at, to, noise, points=31, seed=0):
    """Return a climb from 0.1 to 0.6 that falls to a level between the evaluations `at` - 1 and `at`, and stays."""
    compute = np.arange(float(points))
    level = np.where(compute < at, sigmoid(compute, 0.6, 3.0, 4.0, 0.1), to)
    return Curve(compute, np.clip(level + noise * np.random.default_rng(seed).standard_normal(points), 0, 1))


@pytest.mark.parametrize(("at", "to", "noise"), [(10, 0.0, 0.002), (20, 0.35, 0.02), (28, 0.15, 0.01)])
def test_the_mean_stays_down_after_a_fall_in_one_evaluation_and_the_band_includes_a_return(at, to, noise):
    fitted = fit(dropped(at, to, noise))
    assert fitted.posterior.fallen and fitted.posterior.stay_probability > 0.95
    band = fitted.predict([31.0, 33.0, 60.0])
    assert band.mean == pytest.approx(to, abs=0.02 + noise)
    # at twice the compute 0.23 times half or more have returned, which is above 0.05
    assert band.high[-1] > to + 0.05 and band.low[-1] < to + 0.02
    assert fitted.posterior.wide_D[fitted.posterior.of(LEVEL.name)].sum() == pytest.approx(0.77)


def test_a_fall_that_noise_may_explain_keeps_the_future_that_rises():
    # three points of 0.12 below the others, with noise of 0.03
    metric = 0.5 + 0.03 * (-1.0) ** np.arange(24)
    metric[-3:] -= 0.13
    stays = fit(Curve(np.arange(24.0), metric)).posterior.stay_probability
    assert 0.5 < stays < fit(dropped(20, 0.1, 0.01)).posterior.stay_probability


def test_the_time_since_a_fall_and_returns_by_hand():
    metric = np.array([0.2, 0.5, 0.6, 0.6, 0.6, 0.55, 0.3, 0.2, 0.2, 0.2])
    curve = Curve(np.arange(10.0) ** 2, metric)
    # the middle of 0.6 and 0.2 is 0.4; the last point above it is the sixth, at 25; the run ends at 81
    assert points_before_fall(curve, 0.2) == 6
    # a last point that is back counts as one evaluation
    assert points_before_fall(Curve(np.arange(10.0), np.append(metric[:-1], 0.6)), 0.2) == 9
    down = fall_of(curve).down(curve, np.arange(2000) < 500)
    # of those that return, half have after the time since the fall, three quarters after three times this
    for times, share in ((1, 0.5), (3, 0.75)):
        assert (down.return_D[:500] <= 81 + 56 * times).mean() == pytest.approx(share, abs=0.05)
    assert np.isinf(down.return_D[500:]).all() and np.isfinite(down.return_D[:500]).all()


@pytest.mark.parametrize(("points", "low"), [(18, 0.3), (27, 0.05)])
def test_what_returns_after_a_clear_fall_follows_the_law_of_the_points_before_it(points, low):
    curve = dropped(points, low, 0.005)
    before, after = posterior(curve.first(points)), posterior(curve)
    for compute in (30.0, 60.0, 120.0):
        of_law, returned = (of.draws.levels(np.array([compute]))[0] for of in (before, after))
        expected = quantiles(of_law, before.wide_D, [0.1, 0.5, 0.9])
        weight_D = after.wide_D * after.of(RETURN.name)
        assert quantiles(returned, weight_D, [0.1, 0.5, 0.9]) == pytest.approx(expected, abs=0.01)
