import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_runs import run

from scalerl.reading.curves import Curve, CurveError, advise, fit, forecast, sigmoid


@pytest.mark.parametrize(("last", "noise"), [(1800.0, 0.05), (6000.0, 0.01), (9000.0, 0.002), (64_000.0, 0.01)])
def test_the_mean_gain_of_the_forecast_decides_and_no_run_with_a_fit_is_left_undecided(last, noise):
    fitted = fit(run(last=last, noise=noise))
    ahead, advice = forecast(fitted, at=["2x"]), advise(fitted)
    gain = ahead.at[0].mean - ahead.now.mean
    by_gain = "about" if 0.015 <= gain <= 0.025 else "continue" if gain > 0.02 else "stop"
    assert advice.action == by_gain or (advice.action == "open" and gain < 0.02)


def level_after_climb(noise, creep=0.0, points=41):
    """Return a climb that ends at a sixteenth of the run, followed by a rise of `creep` per doubling of compute."""
    rng = np.random.default_rng(0)
    compute = np.linspace(0, 16, points)
    rising = creep * np.log2(np.maximum(compute, 1.0))
    return Curve(compute, sigmoid(compute, 0.5, 3.0, 0.2, 0.2) + rising + noise * rng.standard_normal(points))


def waiting():
    """Return a noisy level of 0.2 that shows no climb yet; a rise would be worth it."""
    return Curve(np.arange(1.0, 21.0), 0.3 + 0.03 * np.random.default_rng(5).standard_normal(20), axis="device_hours")


def flat(noise=0.003, seed=1):
    return Curve(np.arange(20.0), 0.3 + noise * np.random.default_rng(seed).standard_normal(20))


def fallen(last_points):
    """Return a run at 0.5 that then evaluates to these values."""
    curve = level_after_climb(0.003)
    metric = np.concatenate([curve.metric, last_points])
    return Curve(np.arange(41.0 + len(last_points)), metric, axis="device_hours")


def test_go_back_needs_a_fall_at_two_successive_evaluations():
    # means of the last three points: 0.5, 0.4, 0.2 below a best of about 0.502
    advice = advise(fit(fallen([0.2, 0.2, 0.2])))
    assert advice.action == "go back"
    assert advice.go_back_to <= 40 and "fallen by 0.3" in advice.sentence
    assert advice.cost.compute == pytest.approx(43 - advice.go_back_to)
    once = advise(fit(fallen([0.5, 0.1])))
    assert once.action != "go back" and math.isnan(once.go_back_to)


def test_a_metric_with_other_bounds_has_the_same_decision():
    curve = run(last=9000.0, noise=0.01)
    percent = Curve(curve.compute, 100 * curve.metric, bounds=(0.0, 100.0), axis=curve.axis)
    ours, theirs = advise(fit(curve)), advise(fit(percent))
    assert ours.action == theirs.action and theirs.limit == pytest.approx(2.0)
    assert theirs.counted == ours.counted is not None
    assert theirs.cost.per_point == pytest.approx(ours.cost.per_point, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 1000.0}, "already spent"),
        ({"min_gain": 0.0}, "min_gain"),
        ({"budget": "twice"}, "multiple"),
        ({"price": 0.0}, "above 0; got 0"),
    ],
)
def test_invalid_budgets_gains_and_prices_are_errors(options, message):
    with pytest.raises(CurveError, match=message):
        advise(fit(run()), **options)


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
        assert "another 5,000 device-hours ($10,000)" in advice.sentence


CLOSE = run(last=12_000.0, noise=0.01, seed=3, efficiency=1.4)


def test_the_examples_of_the_page_are_as_printed():
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    for made in (run(last=5000.0), run(last=64_000.0), CLOSE, waiting(), fallen([0.2] * 3)):
        assert str(advise(fit(made), price=2.5)) in page


def test_the_futures_of_an_open_run_are_its_draws_on_both_sides_of_the_limit():
    advice = advise(fit(waiting()))
    flat, rises = advice.futures["flat"], advice.futures["rises"]
    assert flat.probability + rises.probability == pytest.approx(1.0)
    assert flat.gain.high <= 0.02 < rises.gain.low
    draws = fit(waiting()).posterior.wide_sample.gain(40.0)
    assert rises.probability == (draws > 0.02).mean() and rises.gain.mean == pytest.approx(draws[draws > 0.02].mean())


def test_nothing_is_counted_for_another_budget_or_for_a_training_reward():
    fitted = fit(run(last=5000.0))
    assert advise(fitted).counted is not None and advise(fitted, "4x").counted is None
    of_training = advise(fit(replace(run(last=5000.0), training=True)))
    assert of_training.counted is None and "cases" not in of_training.sentence


def test_compute_without_a_unit_is_as_much_again():
    fitted = fit(Curve(np.arange(41.0), run(last=5000.0).metric))
    assert advise(fitted).sentence.startswith("Continue: twice the compute should gain")
    assert ", for as much compute again. " in advise(fitted).sentence
    assert ", for 3 times as much compute again." in advise(fitted, "4x").sentence
