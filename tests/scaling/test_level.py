import numpy as np
import pytest
from scipy.special import gamma
from scipy.stats import multivariate_normal

from scalerl.reading.curves.level import (
    STEP_RATIOS,
    level_after_change,
    level_posterior,
    steady_level,
    tails,
    walk_modes,
)


def covariance(ratio, count):
    index = np.arange(count)
    return np.eye(count) + ratio * np.minimum.outer(index, index)


@pytest.mark.parametrize("count", [3, 4, 12])
def test_the_modes_diagonalize_the_walk(count):
    values, vectors = walk_modes(count)
    index = np.arange(count)
    assert vectors @ np.diag(values) @ vectors.T == pytest.approx(np.minimum.outer(index, index), abs=1e-10)
    assert vectors.T @ vectors == pytest.approx(np.eye(count), abs=1e-10)


def test_the_evidence_is_the_integral_over_level_and_noise():
    y = np.array([0.31, 0.35, 0.33, 0.41])
    levels, logs = np.linspace(-3, 4, 1401), np.linspace(np.log(1e-3), np.log(1e2), 400)
    total = 0.0
    for ratio in STEP_RATIOS:
        for log_sd in logs:  # the prior 1/s is uniform in ln s
            spread = covariance(ratio, 4) * np.exp(2 * log_sd)
            density = multivariate_normal(np.zeros(4), spread).pdf(y[None, :] - levels[:, None])
            total += density.sum() * (levels[1] - levels[0]) * (logs[1] - logs[0]) / len(STEP_RATIOS)
    # the closed form leaves out a factor of 1/2 from the integral over s
    assert level_posterior(y, 0.0).log_evidence + np.log(0.5) == pytest.approx(np.log(total), abs=0.02)


def test_draws_have_the_moments_of_the_posterior():
    y = np.array([0.31, 0.35, 0.33, 0.41, 0.40, 0.46, 0.44])
    level = level_posterior(y, 0.0)
    draws = level.draws(20_000, np.random.default_rng(0))
    assert draws.level.mean() == pytest.approx(float(level.weight_X @ level.level_X), abs=2e-3)
    assert np.sort(np.unique((draws.step_sd / draws.noise_sd).round(6) ** 2)).round(3) == pytest.approx(
        STEP_RATIOS, abs=1e-3
    )


def test_weights_are_those_of_generalized_least_squares():
    y = np.array([0.31, 0.35, 0.33, 0.41, 0.40, 0.46, 0.44])
    weight = np.array([1.0, 0.5, 2.0, 1.0, 0.7, 1.3, 0.8])
    level = level_posterior(y, 0.0, weight)
    one, index = np.ones(7), np.arange(7)
    walk = np.minimum.outer(index, index)
    for i, ratio in enumerate(STEP_RATIOS):
        precision = np.linalg.inv(np.diag(weight**-2) + ratio * walk)
        mean = one @ precision @ y / (one @ precision @ one)
        assert level.level_X[i] == pytest.approx(mean + ratio * walk[-1] @ precision @ (y - mean))
        assert level.rss_X[i] == pytest.approx((y - mean) @ precision @ (y - mean))
        # variance of the last level: of the walk given the mean, and of the mean
        kept = 1 - ratio * walk[-1] @ precision @ one
        spread = ratio * 6 - ratio**2 * walk[-1] @ precision @ walk[-1] + kept**2 / (one @ precision @ one)
        assert level.spread_X[i] == pytest.approx(spread)


def test_the_evidence_of_a_steady_level_is_the_integral_over_level_and_noise():
    y, phis = np.array([0.31, 0.35, 0.33, 0.41]), np.array([0.0, 0.6])
    levels, logs = np.linspace(0.0, 1.0, 201), np.linspace(np.log(1e-3), np.log(1e2), 400)
    lag = np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
    total = 0.0
    for phi in phis:
        for log_sd in logs:  # of an innovation
            spread = phi**lag / (1 - phi**2) * np.exp(2 * log_sd)
            density = multivariate_normal(np.zeros(4), spread).pdf(y[None, :] - levels[:, None])
            total += density.sum() * (levels[1] - levels[0]) * (logs[1] - logs[0]) / len(phis)
    level = steady_level(y, 0.0, phis, 0.0, 1.0, 10)
    # as above, the closed form leaves out a factor of 1/2
    assert level.log_evidence + np.log(0.5) == pytest.approx(np.log(total), abs=0.02)


def test_draws_of_a_steady_level_have_the_moments_of_the_posterior_and_keep_the_limits():
    y, phi = np.array([0.31, 0.35, 0.33, 0.41, 0.40, 0.46, 0.44]), 0.4
    lag = np.abs(np.subtract.outer(np.arange(7), np.arange(7)))
    precision, one = np.linalg.inv(phi**lag), np.ones(7)
    mean = one @ precision @ y / (one @ precision @ one)
    level = steady_level(y, 0.0, np.array([phi]), -9.0, 9.0, 20_000)
    assert level.level_D.mean() == pytest.approx(mean, abs=1e-3)
    # the variance given the points is RSS / chi^2 with 6 degrees of freedom: its inverse has the mean 6 / RSS
    rss = (y - mean) @ precision @ (y - mean)
    assert (level.noise_D**-2).mean() == pytest.approx(6 / rss, rel=0.03)
    limited = steady_level(y, 0.0, np.array([phi]), 0.4, 1.0, 1000)
    assert (limited.level_D >= 0.4).all()


def solved(y, spread, columns):
    """Return RSS, the log determinant of spread and of the information, the estimates and their covariance."""
    precision = np.linalg.inv(spread)
    information = columns.T @ precision @ columns
    estimate = np.linalg.solve(information, columns.T @ precision @ y)
    rest = y - columns @ estimate
    volume = np.linalg.slogdet(spread)[1] + np.linalg.slogdet(information)[1]
    return rest @ precision @ rest, volume, estimate, np.linalg.inv(information)


def test_the_tails_are_those_of_generalized_least_squares():
    weight = np.array([1.0, 0.5, 2.0, 1.0, 0.7, 1.3, 0.8])
    y = np.array([0.31, 0.35, 0.33, 0.41, 0.40, 0.46, 0.44])
    found = tails(y, weight**-2.0)
    for start in range(7):
        index = np.arange(7 - start)
        for i, ratio in enumerate(STEP_RATIOS):
            # steps counted from the end, so that the level at the last point is the coefficient
            spread = np.diag(weight[start:] ** -2.0) + ratio * np.minimum.outer(index, index)[::-1, ::-1]
            rss, volume, (level,), ((variance,),) = solved(y[start:], spread, np.ones((7 - start, 1)))
            assert found.rss_NQ[start, i] == pytest.approx(rss, abs=1e-12)
            assert found.log_volume_NQ[start, i] == pytest.approx(volume, abs=1e-9)
            assert found.level_NQ[start, i] == pytest.approx(level)
            assert found.spread_NQ[start, i] == pytest.approx(variance)


def test_the_evidence_of_a_change_is_that_of_all_its_places_and_walks():
    y, floor = np.array([0.60, 0.62, 0.59, 0.61, 0.30, 0.31, 0.29]), 1e-9
    densities = []
    for at in range(2, 7):
        for before in STEP_RATIOS:
            for after in STEP_RATIOS:
                first, rest = np.arange(at), np.arange(7 - at)
                spread = np.eye(7)
                spread[:at, :at] += before * np.minimum.outer(first, first)
                spread[at:, at:] += after * np.minimum.outer(rest, rest)
                columns = np.stack([np.arange(7) < at, np.arange(7) >= at], axis=1).astype(float)
                rss, volume, *_ = solved(y, spread, columns)
                densities.append(gamma(2.5) * (np.pi * (rss + floor)) ** -2.5 * np.exp(-volume / 2))
    whole = np.exp(level_posterior(y, floor).log_evidence)
    found = level_after_change(y, floor, 2)
    assert found.log_evidence == pytest.approx(np.log((whole + np.mean(densities)) / 2))
    assert found.weight_X.sum() == pytest.approx(1.0)
    assert found.weight_X[8:].sum() == pytest.approx(np.mean(densities) / (whole + np.mean(densities)))


@pytest.mark.parametrize("since", [1, 8])
def test_a_step_far_outside_the_noise_gives_the_new_level_and_leaves_the_noise(since):
    y = np.concatenate([np.full(20, 0.7), np.full(since, 0.2)])
    y += 0.01 * np.random.default_rng(since).standard_normal(len(y))
    changed, walk = level_after_change(y, 1e-9, 18), level_posterior(y, 1e-9)
    draws, of_walk = (each.draws(4000, np.random.default_rng(0)) for each in (changed, walk))
    assert draws.level.mean() == pytest.approx(y[20:].mean(), abs=0.012)
    assert 0.004 < np.median(draws.noise_sd) < 0.014
    assert np.median(of_walk.noise_sd) > 0.02  # the walk has no other place for the step
    assert changed.path_N[[0, 10, -1]] == pytest.approx([0.7, 0.7, 0.2], abs=0.02)
