from pathlib import Path

import numpy as np
import pytest
from simulated_runs import fallen, run

from scalerl.reading.curves import Curve, CurveError, compare, fit, sigmoid
from scalerl.reading.curves.comparison import (
    common_ceiling,
    recipe_ceilings,
    seed_scatter,
    side_mean,
    verdict_of,
)

RNG = np.random.default_rng


def seeds(count, first_seed=0, **changes):
    """Return runs of one recipe whose ceilings scatter by 0.012, as in published runs."""
    scatter = 0.012 * RNG(first_seed).standard_normal(count)
    asymptote = changes.pop("asymptote", 0.61)
    return [run(seed=first_seed + i, asymptote=asymptote + d, **changes) for i, d in enumerate(scatter)]


def test_a_clearly_higher_ceiling_is_detected():
    comparison = compare(seeds(3), seeds(3, 10, asymptote=0.52))
    assert (comparison.verdict, comparison.winner) == ("higher ceiling", "first")
    assert comparison.asymptote_difference.low < 0.09 < comparison.asymptote_difference.high
    assert comparison.probability_higher > 0.99
    assert comparison.sentence.startswith("The first is ahead of the second at every compute measured, at 16,000 dev")
    assert "the first has the higher ceiling of its climb, by 0.1" in comparison.sentence


def test_a_steeper_run_that_is_behind_everywhere_is_not_the_winner():
    """B 2.1 against 1.6 with a midpoint three times as late: larger B, and more compute for every level short of A."""
    comparison = compare(seeds(3, efficiency=2.1, midpoint=4500.0), seeds(3, 10, efficiency=1.6, midpoint=1500.0))
    assert (comparison.verdict, comparison.winner, comparison.advice) == ("same ceiling, steeper but later", None, "")
    assert comparison.compute_ratio.low > 1.5 and comparison.efficiency_ratio.low > 1
    assert "the first is steeper (B " in comparison.sentence and "but later" in comparison.sentence
    assert "the second needs 0." in comparison.sentence
    assert comparison.sentence.startswith("The second is probably ahead of the first")


def test_the_same_run_twice_is_not_distinguishable_and_the_advice_is_more_seeds():
    comparison = compare(run(noise=0.003), run(noise=0.003, seed=1))
    assert (comparison.verdict, comparison.winner) == ("too close to call", None)
    assert comparison.sentence.startswith("The first and the second are too close to call at 16,000 device-hours")
    # a difference of 0.02 between means of seeds of sd 0.012 is significant from S = 2 (0.012 * 1.96 / 0.02)^2 = 2.8 on
    assert comparison.advice == "To decide it: about 3 seeds per side, for a difference of 0.020."


def stretched(made, factor):
    """Return a run that needs `factor` times the compute for everything."""
    return Curve(factor * made.compute, made.metric, axis=made.axis)


def test_a_copy_at_twice_the_compute_is_behind_and_needs_twice_as_much():
    comparison = compare(run(seed=1), stretched(run(seed=1), 2.0), names=("dapo", "grpo"))
    assert (comparison.verdict, comparison.winner) == ("ahead where measured", "first")
    assert comparison.compute_ratio.low < 0.5 < comparison.compute_ratio.high < 1
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert comparison.sentence in page


def test_with_one_seed_the_scatter_is_assumed_and_reported_as_assumed():
    comparison = compare(run(), run(seed=1))
    assert comparison.seed_sd == pytest.approx(0.02 / 1.645)
    assert comparison.seed_source == "assumed: nine in ten seeds within ±0.02"


def test_with_three_seeds_the_scatter_is_estimated():
    asymptotes = (0.55, 0.61, 0.67)  # standard deviation 0.06
    wide = [fit(run(seed=i, asymptote=a)) for i, a in enumerate(asymptotes)]
    draws, source = seed_scatter((tuple(wide), tuple(wide)), 1.0, RNG(0))
    assert source == "estimated from 3 and 3 seeds"
    # four degrees of freedom at 0.06 against three at 0.012: sqrt((4 * 0.06^2 + 3 * 0.012^2) / 7) = 0.046
    assert np.median(draws) == pytest.approx(0.046, rel=0.25)


def test_a_side_is_the_mean_of_its_runs_with_the_seed_noise_of_each():
    certain = [np.full(200_000, 0.5), np.full(200_000, 0.6)]
    draws = side_mean(certain, np.full(200_000, 0.02), RNG(0))
    assert draws.mean() == pytest.approx(0.55, abs=1e-3)
    assert draws.std() == pytest.approx(0.02 / np.sqrt(2), rel=0.01)


def test_the_common_ceiling_is_closer_to_the_more_precise_ceiling():
    sure, unsure = fit(run()), fit(run(last=2000.0))
    assert abs(common_ceiling([sure, unsure], 0.012) - sure.asymptote.mean) < 0.02


@pytest.mark.parametrize(
    ("difference", "ratio", "verdict"),
    [
        (RNG(0).normal(0.05, 0.01, 4000), RNG(1).normal(1, 0.1, 4000), ("higher ceiling", "first")),
        (RNG(0).normal(-0.05, 0.01, 4000), RNG(1).normal(1, 0.1, 4000), ("higher ceiling", "second")),
        (RNG(0).normal(0.0, 0.01, 4000), RNG(1).normal(-1, 0.1, 4000), ("same ceiling and more efficient", "second")),
        (RNG(0).normal(0.0, 0.01, 4000), RNG(1).normal(0, 0.1, 4000), ("too close to call", None)),
        # B is compared only if the ceilings are probably the same
        (RNG(0).normal(0.0, 0.20, 4000), RNG(1).normal(1, 0.1, 4000), ("too close to call", None)),
    ],
)
def test_ceilings_are_compared_first_and_b_only_if_they_are_equal(difference, ratio, verdict):
    assert verdict_of(difference, ratio, -ratio, 0.02) == verdict


@pytest.mark.parametrize(
    ("first", "second", "options", "message"),
    [
        ([], run(), {}, "one run"),
        (run(), Curve(run().compute, run().metric, axis="flops"), {}, "axis"),
        (run(), Curve(run().compute, run().metric, bounds=(0, 2), axis="device_hours"), {}, "bounds"),
        (run(), run(seed=1), {"level": 1.5}, "1.5"),
    ],
)
def test_invalid_comparisons_are_errors(first, second, options, message):
    with pytest.raises(CurveError, match=message):
        compare(first, second, **options)


def test_a_fallen_run_is_compared_by_its_last_level():
    healthy = Curve(np.arange(31.0), sigmoid(np.arange(31.0), 0.5, 3.0, 4.0, 0.1) + 0.02 * RNG(9).standard_normal(31))
    down = fit(fallen())
    comparison = compare(down, healthy)
    # the share that stays down ends near 0.2; the law alone ends above 0.3
    assert (
        down.posterior.stay_probability <= (recipe_ceilings(down) < 0.3).mean() < down.posterior.stay_probability + 0.1
    )
    assert comparison.asymptote_difference.mean < -0.2 and comparison.winner != "first"
    assert "a run of the first: with probability 0.77 the run has fallen and stays down" in str(comparison)
    assert comparison.winner == "second" or "1 of the runs have fallen; find the cause" in comparison.advice


def test_the_lead_is_forecast_at_the_compute_that_is_asked_for():
    first, second = fit(run(seed=1)), fit(stretched(run(seed=1), 2.0))
    usual, far = compare(first, second), compare(first, second, at="4x")
    assert far.forecast.compute == 4 * far.measured.compute and usual.forecast.compute == 2 * usual.measured.compute
    # the rest is as without it
    assert far.measured == usual.measured and far.asymptote_difference == usual.asymptote_difference
    lead = far.forecast.difference
    ahead = "the first" if far.forecast.probability > 0.5 else "the second"
    assert f"; at 64,000 device-hours, {ahead} should be ahead by {abs(lead.mean):.3f} (" in far.sentence
    assert "64,000" not in usual.sentence
    assert compare(first, second, at=64_000.0).forecast == far.forecast
    with pytest.raises(CurveError, match="compute must be a positive number"):
        compare(first, second, at="soon")


def test_with_seeds_enough_for_the_difference_only_more_compute_decides_which_ceiling_is_higher():
    """It advised to choose by cost, next to a lead that was certain."""
    compute = 20.0 * np.arange(20)
    sides = []
    for side, ceiling in enumerate((0.70, 0.74)):
        rng = np.random.default_rng(side)
        level = 0.15 + (ceiling - 0.15) / (1 + (120 / np.maximum(compute, 1e-9)) ** 1.4)
        sides.append([Curve(compute, level + rng.normal(0, 0.01, len(compute))) for _ in range(5)])
    made = compare(*sides)
    assert made.measured.probability < 0.05 and "ceiling is open" in str(made)
    assert made.advice == "To decide which ceiling is higher: twice the compute; more seeds alone would not."
