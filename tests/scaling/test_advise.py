import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from simulated_runs import fallen as falling_run
from simulated_runs import run

from scalerl.scaling import Curve, CurveError, advise, fit, forecast, sigmoid
from scalerl.scaling.advise import SURE, chance_to_be_sure, climbed, probability_of_gain, what_makes_sure
from scalerl.scaling.counts import NO_CLIMB, SLOW_RISE
from scalerl.scaling.estimate import Estimate
from scalerl.scaling.price import Cost, NextGain
from scalerl.scaling.trend import trend


def test_a_run_in_full_climb_is_continued():
    advice = advise(fit(run(last=5000.0)))
    assert advice.action == "continue" and advice.sure
    assert advice.probability > 0.9
    # truth: R(10000) - R(5000) = 0.5812 - 0.5213 (table-1 run)
    assert advice.gain.low < 0.0599 < advice.gain.high


def test_a_finished_run_is_stopped():
    advice = advise(fit(run(last=64_000.0)))
    assert advice.action == "stop" and advice.sure and advice.probability > 0.9


@pytest.mark.parametrize("last", [1800.0, 4000.0, 6000.0, 9000.0, 16_000.0, 64_000.0])
@pytest.mark.parametrize("noise", [0.002, 0.01, 0.05])
def test_the_mean_gain_of_the_forecast_decides_and_no_run_with_a_fit_is_left_undecided(last, noise):
    fitted = fit(run(last=last, noise=noise))
    ahead, advice = forecast(fitted, at=["2x"]), advise(fitted)
    assert advice.action == ("continue" if ahead.at[0].mean - ahead.now.mean > 0.02 else "stop")


@pytest.mark.parametrize("made", [run(), run(last=1800.0), run(noise=0.04, seed=4), run(last=6000.0, noise=0.01)])
def test_the_level_now_plus_the_gain_is_the_forecast(made):
    fitted = fit(made)
    ahead, gain = forecast(fitted, at=["2x"]), advise(fitted).gain
    assert ahead.now.mean + gain.mean == pytest.approx(ahead.at[0].mean, abs=1e-12)
    assert gain.low <= gain.mean <= gain.high
    assert ahead.now.low + gain.low <= ahead.at[0].high and ahead.now.high + gain.high >= ahead.at[0].low


def level_after_climb(noise, creep=0.0, points=41):
    """Return a climb that ends at a sixteenth of the run, followed by a rise of `creep` per doubling of compute."""
    rng = np.random.default_rng(0)
    compute = np.linspace(0, 16, points)
    rising = creep * np.log2(np.maximum(compute, 1.0))
    return Curve(compute, sigmoid(compute, 0.5, 3.0, 0.2, 0.2) + rising + noise * rng.standard_normal(points))


def test_the_trend_moves_the_probability_by_the_share_of_public_runs_that_rose_slowly():
    fitted = fit(run(noise=0.002))
    both = (fitted.gain(2 * fitted.last_compute), fitted.mean_gain(2 * fitted.last_compute))
    by_forecast = float(np.mean([(gain_D > 0.01).mean() for gain_D in both]))
    by_trend = trend(fitted.curve).probability(0.01, 1.0)
    assert by_forecast < 0.5 < by_trend
    expected = by_forecast + 4 / 14 * (by_trend - by_forecast)
    assert probability_of_gain(fitted, 2 * fitted.last_compute, 0.01) == pytest.approx(expected)
    assert SLOW_RISE.share == pytest.approx(4 / 14)


def test_a_trend_below_the_forecast_does_not_count():
    fitted = fit(run(last=1800.0, noise=0.03))
    both = (fitted.gain(3600.0), fitted.mean_gain(3600.0))
    by_forecast = float(np.mean([(gain_D > 0.05).mean() for gain_D in both]))
    assert trend(fitted.curve).probability(0.05, 1.0) < by_forecast
    assert probability_of_gain(fitted, 3600.0, 0.05) == by_forecast


def flat(noise=0.003, seed=1):
    return Curve(np.arange(20.0), 0.3 + noise * np.random.default_rng(seed).standard_normal(20))


def test_a_run_without_a_climb_is_never_surely_stopped_and_says_how_many_rose():
    advice = advise(fit(flat()))
    assert not advice.sure and str(NO_CLIMB) in advice.sentence
    assert "public runs rose" not in advise(fit(level_after_climb(0.003))).sentence


def test_little_noise_is_no_evidence_of_a_climb():
    # noise of 0.0005 around a level: the prior odds of a run that stays are 0.0002, and the points show no climb
    still = fit(Curve(np.arange(20.0), 0.3 + 0.0005 * np.random.default_rng(1).standard_normal(20)))
    assert still.futures.stay_probability <= 0.1 and still.futures.climb < 0
    assert not climbed(still)
    assert climbed(fit(level_after_climb(0.003)))


def fallen(last_points):
    """Return a run at 0.5 that then evaluates to these values."""
    curve = level_after_climb(0.003)
    return Curve(np.arange(41.0 + len(last_points)), np.concatenate([curve.metric, last_points]))


def test_go_back_needs_a_fall_at_two_successive_evaluations():
    # means of the last three points: 0.5, 0.4, 0.2 below a best of about 0.502
    advice = advise(fit(fallen([0.2, 0.2, 0.2])))
    assert advice.action == "go back" and advice.sure and advice.probability == pytest.approx(10 / 11)
    assert advice.go_back_to <= 40 and "fallen by 0.3" in advice.headline
    assert advice.cost.compute == pytest.approx(43 - advice.go_back_to)
    once = advise(fit(fallen([0.5, 0.1])))
    assert once.action != "go back" and math.isnan(once.go_back_to)


def test_the_first_line_has_action_probability_gain_and_price():
    made = {"continue": run(last=5000.0), "stop": run(last=64_000.0), "close": run(noise=0.03, seed=4)}
    lines = {name: advise(fit(curve), price=2.5).lines[0] for name, curve in made.items()}
    assert lines["continue"].startswith("Continue (99% sure): twice the compute (10,000 device-hours) should gain 0.0")
    assert "for another 5,000 device-hours ($12,500, $" in lines["continue"] and "per point)." in lines["continue"]
    assert lines["stop"].startswith("Stop (99% sure): twice the compute (128,000 device-hours) should gain only 0.00")
    assert lines["close"].startswith("Stop (best guess, ")
    fell = advise(fit(falling_run())).lines[0]
    assert fell.startswith("Go back (91% sure): the run has fallen by 0.")


@pytest.mark.parametrize("made", [run(), run(last=5000.0), flat(), fallen([0.2] * 3), run(last=1800.0, noise=0.03)])
def test_every_decision_has_the_same_json_fields_and_is_valid_json(made):
    values = json.loads(json.dumps(advise(fit(made)).to_dict(), allow_nan=False))
    assert list(values) == [
        "action", "probability", "sure", "gain", "min_gain", "budget", "cost", "go_back_to", "headline", "reason",
        "remedy", "sentence",
    ]  # fmt: skip
    assert values["sure"] == (values["probability"] >= SURE)
    assert set(values["cost"]) == {"compute", "axis", "device_hours", "money", "per_point"}


def test_what_makes_a_guess_sure_is_below_twice_the_compute_and_a_sure_advice_needs_nothing():
    assert advise(fit(run(last=5000.0))).remedy == ""
    for seed in range(6):
        advice = advise(fit(run(last=12_000.0, noise=0.02, seed=seed)))
        if not advice.sure:
            assert "To be sure: training to 1." in advice.remedy or "close call" in advice.remedy
            assert "2 times" not in advice.remedy


def test_more_compute_and_less_noise_make_an_advice_sure_more_often():
    fitted = fit(run(last=9000.0, noise=0.02, seed=2))
    total = 2 * fitted.last_compute
    chances = [chance_to_be_sure(fitted, total, 0.03, factor, 1.0) for factor in (1.05, 1.5, 1.95)]
    assert 0 <= chances[0] <= chances[-1] <= 1
    curve = fitted.curve
    with_errors = fit(
        Curve(curve.compute, curve.metric, stderr=np.full(len(curve), 0.02), axis=curve.axis, prompts=512)
    )
    few, many = (chance_to_be_sure(with_errors, total, 0.03, 1.25, prompts) for prompts in (1.0, 16.0))
    assert few <= many
    assert "prompts" not in what_makes_sure(fitted, total, 0.03)  # their share of the noise is not known


def test_a_metric_with_other_bounds_has_the_same_decision():
    curve = run(last=9000.0, noise=0.01)
    percent = Curve(curve.compute, 100 * curve.metric, bounds=(0.0, 100.0), axis=curve.axis)
    ours, theirs = advise(fit(curve)), advise(fit(percent))
    assert ours.action == theirs.action and theirs.min_gain == pytest.approx(2.0)
    assert theirs.probability == pytest.approx(ours.probability, abs=0.02)
    assert theirs.cost.per_point == pytest.approx(ours.cost.per_point, rel=0.05)


@pytest.mark.parametrize("made", [run(last=8000.0, noise=0.01), flat(), level_after_climb(0.01)])
def test_a_larger_gain_is_never_more_probable(made):
    fitted = fit(made)
    total = 2 * fitted.last_compute
    chances = [probability_of_gain(fitted, total, gain) for gain in (0.001, 0.01, 0.03, 0.1, 0.4)]
    assert chances == sorted(chances, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 1000.0}, "already spent"),
        ({"budget": "1x"}, "already spent"),
        ({"min_gain": 0.0}, "min_gain"),
        ({"min_gain": -0.1}, "min_gain"),
        ({"min_gain": math.nan}, "min_gain"),
        ({"budget": "twice"}, "multiple"),
        ({"price": 0.0}, "above 0; got 0"),
        ({"price": -2.5}, "above 0; got -2.5"),
        ({"price": math.inf}, "above 0"),
    ],
)
def test_invalid_budgets_gains_and_prices_are_errors(options, message):
    with pytest.raises(CurveError, match=message):
        advise(fit(run()), **options)


def test_a_price_needs_device_hours():
    with pytest.raises(CurveError, match="this curve has only steps"):
        advise(fit(Curve(np.arange(20.0), run(points=20).metric, axis="step")), price=2.5)


def test_costs_in_device_hours_are_known_for_other_axes_if_the_rows_have_them():
    made = run(last=5000.0)
    rows = [
        {"step": 10 * i, "flops": 1e15 * c, "device_hours": c, "pass_rate": m}
        for i, (c, m) in enumerate(zip(made.compute.tolist(), made.metric.tolist(), strict=True))
    ]
    by_hours, by_flops, by_step = (advise(fit(Curve.from_rows(rows, axis=axis)), price=2.0) for axis in
                                   ("device_hours", "flops", "step"))  # fmt: skip
    for advice in (by_hours, by_flops, by_step):
        assert advice.cost.device_hours == pytest.approx(5000.0) and advice.cost.money == pytest.approx(10_000.0)
    assert "(10 EFLOP)" in by_flops.headline and "(800 steps)" in by_step.headline


def test_the_examples_of_the_page_are_as_printed():
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    close = run(last=12_000.0, noise=0.01, seed=3, efficiency=1.4)
    for made in (run(last=5000.0), close):
        assert advise(fit(made), price=2.5).headline in page


@pytest.mark.parametrize(
    ("mean", "text"),
    [(0.0051, "only 0.005 "), (0.01996, "only 0.01996 "), (0.0196, "only 0.0196 "), (0.019, "only 0.019 ")],
)
def test_a_gain_below_the_limit_is_printed_as_below_it(mean, text):
    cost = Cost(1.0, "step", math.nan, math.nan, math.nan)
    clause = NextGain(2.0, 2.0, Estimate(mean, 0.01, 0.0, 0.03), cost).text(below=0.02)
    assert text in clause and ", below 0.02, for another 1 steps" in clause


def test_first_lines_are_read_without_knowing_the_others():
    close = fit(run(last=12_000.0, noise=0.01, seed=3, efficiency=1.4))
    lines = [advise(f).headline for f in (fit(run(last=5000.0)), fit(run(last=64_000.0)), close)]
    starts = [re.match(r"(\w+) \(([a-z ]*)", line).groups() for line in lines]
    assert starts[0][0] == "Continue" and starts[1][0] == "Stop" and starts[2] == ("Stop", "close call")
    assert all(" should gain " in line and "for another " in line and line.endswith(").") for line in lines)
    assert not any(word in line for line in lines for word in ("C_mid", "asymptote", "posterior", "identified"))
