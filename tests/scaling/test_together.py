"""Related runs fitted together: smaller errors than alone, honest intervals, and unrelated runs that stay apart."""

import json

import numpy as np
import pytest
from commands import call
from simulated_runs import run, write

from scalerl.reading.curves import Curve, CurveError, fit, fit_together, sigmoid
from scalerl.reading.curves.together import SHARED, UNLIKE, walk

SEEDS, STRANGERS = (0.06, 0.15, 0.1), (1.0, 1.5, 0.5)
"""Scatter between runs of logit A, ln C_mid and ln B."""


def world(seed, scatter):
    """Return four related runs, of which some have just begun, and their true parameters."""
    rng = np.random.default_rng(seed)
    middle = np.array([rng.normal(0.5, 0.5), np.log(1000.0), rng.normal(np.log(1.7), 0.25)])
    runs, truths = [], []
    for last in (1500.0, 1500.0, 3000.0, 8000.0):
        theta = middle + np.array(scatter) * rng.standard_normal(3)
        asymptote = 1 / (1 + np.exp(-theta[0]))
        truth = {"asymptote": asymptote, "midpoint": np.exp(theta[1]), "efficiency": np.exp(theta[2]),
                 "initial": 0.03 + 0.1 * asymptote}  # fmt: skip
        compute = np.linspace(0, last, 25)
        level = sigmoid(compute, **truth) + 0.012 * rng.standard_normal(25)
        runs.append(Curve(compute, np.clip(level, 0, 1)))
        truths.append(truth)
    return runs, truths


def errors(scatter, seeds):
    """Return the root mean square error at four times the compute, and the coverage of A: alone, then together."""
    alone, together, inside = [], [], []
    for seed in seeds:
        runs, truths = world(seed, scatter)
        for one, truth, f in zip(runs, truths, fit_together(runs).fits, strict=True):
            at = 4 * one.last_compute
            alone.append(fit(one).mean(at)[0] - sigmoid(at, **truth))
            together.append(f.mean(at)[0] - sigmoid(at, **truth))
            inside.append(f.asymptote.low <= truth["asymptote"] <= f.asymptote.high)
    return np.sqrt(np.mean(np.square(alone))), np.sqrt(np.mean(np.square(together))), np.mean(inside)


@pytest.mark.slow
def test_seeds_together_have_smaller_errors_and_intervals_that_cover():
    alone, together, covered = errors(SEEDS, range(700, 706))
    assert together < 0.75 * alone and covered >= 0.86


@pytest.mark.slow
def test_runs_that_differ_more_than_seeds_are_called_so():
    seeds = [fit_together(world(seed, SEEDS)[0]) for seed in range(900, 903)]
    strangers = [fit_together(world(seed, STRANGERS)[0]) for seed in range(900, 903)]
    assert all(one.alike and "warning" not in str(one) for one in seeds)
    apart = [one for one in strangers if not one.alike]
    assert len(apart) >= 2 and all(str(one).endswith(UNLIKE) for one in apart)


def test_a_young_run_shrinks_toward_finished_ones_which_hardly_move():
    young, done = run(last=2000.0, points=15, seed=9), [run(seed=seed) for seed in range(3)]
    both = fit_together([young, *done])
    assert both.fits[0].asymptote.sd < 0.4 * fit(young).asymptote.sd
    assert abs(both.fits[0].asymptote.mean - 0.61) < 0.03
    for f, one in zip(both.fits[1:], done, strict=True):
        assert abs(f.asymptote.mean - fit(one).asymptote.mean) < 0.005
    assert both.asymptote.low < 0.61 < both.asymptote.high and both.efficiency.low < 1.92 < both.efficiency.high
    assert both.midpoint.low < 2542 < both.midpoint.high


def test_runs_with_standard_errors_and_other_bounds_can_be_fitted_together():
    one, two = (run(last=6000.0, seed=seed) for seed in range(2))
    apart = [Curve(c.compute, 10 * c.metric, bounds=(0.0, 10.0), stderr=np.full(len(c), 0.04)) for c in (one, two)]
    assert fit_together(apart).asymptote.mean == pytest.approx(6.1, abs=0.4)


def test_the_walkers_draw_from_the_density():
    """A normal distribution with mean (1, -2) and standard deviations 0.5 and 3."""
    rng = np.random.default_rng(0)
    center, sd = np.array([1.0, -2.0]), np.array([0.5, 3.0])
    draws = np.concatenate([
        walk(lambda x: -0.5 * (((x - center) / sd) ** 2).sum(axis=1), center + sd * rng.standard_normal((48, 2)), rng)
        for _ in range(4)
    ])  # fmt: skip
    assert draws.mean(axis=0) == pytest.approx(center, abs=0.3) and draws.std(axis=0) == pytest.approx(sd, rel=0.15)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([run()], "at least two of them; got 1"),
        ([run(), run(points=4)], "run 2: a fit needs at least 5 points; got 4"),
        ([run(), Curve(run().compute, run().metric, axis="step")], "must share their axis"),
        (
            [run(), Curve(run().compute, run().metric, axis="device_hours", bounds=(0.0, 2.0))],
            "must share their bounds",
        ),
    ],
)
def test_runs_that_cannot_be_fitted_together_are_an_error(runs, message):
    with pytest.raises(CurveError, match=message):
        fit_together(runs)


@pytest.mark.slow
def test_the_command_prints_what_the_runs_share_and_then_each_run(capsys, tmp_path):
    paths = [write(tmp_path / f"seed-{seed}.jsonl", run(last=6000.0, seed=seed)) for seed in range(2)]
    code, out, _ = call(capsys, "fit", *paths, "--together")
    assert code == 0 and out.startswith("shared by 2 runs") and "in ln C_mid" in out
    assert out.count("twice the compute should gain") == 2 and all(str(path) in out for path in paths)
    code, out, _ = call(capsys, "fit", *paths, "--together", "--json")
    answer = json.loads(out)
    assert set(answer) == {"shared", "runs"} and set(answer["shared"]) == {*SHARED, "scatter", "alike"}
    assert [one["source"] for one in answer["runs"]] == list(map(str, paths)) and answer["runs"][0]["advice"]["action"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--together"], "at least two of them; got 1"),
        (["--together", "--method", "paper"], "--together has no --method paper"),
        (["--together", "--r0", "0.2"], "--together has no --r0"),
    ],
)
def test_options_that_a_fit_together_lacks_are_one_line(words, message, capsys, tmp_path):
    code, _, error = call(capsys, "fit", write(tmp_path / "one.jsonl", run()), *words)
    assert code == 2 and message in error and error.count("\n") == 1
