"""`scalerl design`: what the evaluations of a planned run will tell, against runs whose truth is known."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from commands import call
from doc_pages import ROOT, blocks
from scipy.stats import norm
from simulated_runs import run, write
from simulated_study import Truth, write_study

from scalerl.core.rows import read_points
from scalerl.reading.curves import (
    Curve,
    CurveError,
    Evaluations,
    design,
    designs,
    expected_curve,
    expected_of_runs,
    fit,
)
from scalerl.reading.curves.designs import (
    EvaluationNoise,
    Prospect,
    detection_power,
    prospect,
    usual_prospect,
)
from scalerl.reading.curves.law import plain_draws, sigmoid

FEW = pytest.mark.usefixtures("few_worlds")


def papers_runs():
    """Return runs that all have the curve of the paper."""
    one = np.ones(designs.WORLDS)
    numbers = {"asymptote": 0.61, "efficiency": 1.92, "midpoint": 2542.0, "initial": 0.2}
    columns = {name: value * one for name, value in numbers.items()}
    worlds = plain_draws(**columns, autocorrelation=0 * one, noise_sd=0 * one, most=1.0)
    return replace(expected_curve(16_000.0), worlds=worlds)


@pytest.fixture
def few_worlds(monkeypatch):
    monkeypatch.setattr("scalerl.reading.curves.designs.WORLDS", 12)


def test_the_noise_of_sampling_falls_with_the_root_of_the_answers():
    # half of (0.25 + 0.01) / 800 = 0.0001625, whose root is 0.01275
    noise, half = EvaluationNoise(), np.array(0.5)
    assert noise.sampling_sd(half, Evaluations(11, 200, 4), 0.0, 1.0) == pytest.approx(0.012748, abs=1e-6)
    assert noise.sampling_sd(half, Evaluations(11, 800, 1), 0.0, 1.0) == pytest.approx(0.012748, abs=1e-6)
    assert noise.sampling_sd(half, Evaluations(11, 800, 4), 0.0, 1.0) == pytest.approx(0.012748 / 2, abs=1e-6)
    # twice the range, twice the noise
    assert noise.sampling_sd(np.array(0.0), Evaluations(11, 200, 4), -1.0, 1.0) == pytest.approx(2 * 0.012748, abs=1e-6)


def test_the_scatter_with_the_weights_is_correlated_over_its_length_however_often_a_run_is_evaluated():
    noise = EvaluationNoise(sampling=1e-9, drift_sd=0.02, drift_length=5.0)
    for spacing in (1.0, 10.0):
        levels = np.full((4000, 1), 0.5)
        seen = noise.observed(levels, spacing, Evaluations(100, 1000, 1), (0.0, 1.0), 1e9)[:, 0] - 0.5
        assert seen.std() == pytest.approx(0.02, rel=0.1)
        assert np.corrcoef(seen[1:], seen[:-1])[0, 1] == pytest.approx(math.exp(-spacing / 5.0), abs=0.06)


def noisy(seed, prompts, samples, drift, length, count=81, last=16_000.0):
    """Return a run of the paper's recipe whose noise is written here a second time."""
    rng, compute = np.random.default_rng(seed), np.linspace(0.0, last, count)
    level, walk = sigmoid(compute, 0.61, 1.92, 2542.0, 0.2), np.zeros(count)
    phi = np.exp(-(last / (count - 1)) / length)
    walk[0] = drift * rng.standard_normal()
    for t in range(1, count):
        walk[t] = phi * walk[t - 1] + drift * np.sqrt(1 - phi**2) * rng.standard_normal()
    answers = 2 * prompts * samples  # half of the variance of an answer
    return Curve(compute, rng.binomial(answers, np.clip(level + walk, 0, 1)) / answers, axis="device_hours")


def test_the_noise_of_past_runs_is_divided_into_sampling_and_scatter():
    fits = [fit(noisy(seed, 200, 2, drift=0.015, length=400.0)) for seed in range(8)]
    noise = expected_of_runs(fits, [(200, 2)] * 8).noise
    assert noise.drift_sd == pytest.approx(0.015, rel=0.3) and noise.source == "measured"
    assert noise.sampling == pytest.approx(0.5, rel=0.1)
    # the same noise of 400 answers, as if it came from 4,000: nearly all of it is then scatter
    large = expected_of_runs(fits, [(2000, 2)] * 8).noise
    assert large.drift_sd > 1.15 * noise.drift_sd
    assert expected_of_runs(fits, planned=(200, 2)).noise.source == "measured; with 200 prompts x 2, as planned"


def test_eleven_evaluations_never_identify_a_ceiling_and_fifty_one_usually_do():
    few, many = (usual_prospect(Evaluations(count, 200, 4)) for count in (11, 51))
    assert few.identified <= 0.1 and many.identified >= 0.8
    assert many.asymptote_within < 0.5 * few.asymptote_within and many.forecast_within < 0.5 * few.forecast_within


def test_designs_over_the_same_runs_differ_only_beyond_their_standard_error():
    def designed(sd_W):
        return replace(usual, sd_W=np.array(sd_W))

    usual = prospect(expected_curve(1.0), 1.0, Evaluations(11, 200, 4))
    # ln 2 in every run: no scatter; halved and doubled in turn: mean 0
    assert designed([0.01, 0.02]).narrows(designed([0.02, 0.04])) > 1e6
    assert designed([0.01, 0.02]).narrows(designed([0.02, 0.01])) == pytest.approx(0.0)
    # ln 2 and 0: mean ln 2 / 2, deviation ln 2 / 2, over the root of two
    assert designed([0.01, 0.02]).narrows(designed([0.02, 0.02])) == pytest.approx(2**0.5)


@FEW
def test_the_cost_is_the_share_of_completions_in_device_hours_and_money():
    # 51 x 200 x 4 = 40,800 of 408,000: a tenth of 1,000 device-hours, at $2 each
    found = prospect(expected_curve(1000.0), 1000.0, Evaluations(51, 200, 4), 408_000, 2.0)
    assert found.evaluations.completions == 40_800 and found.share == pytest.approx(0.1)
    assert found.cost.device_hours == pytest.approx(100.0) and found.cost.money == pytest.approx(200.0)
    again = prospect(expected_curve(1000.0), 1000.0, Evaluations(51, 200, 4), 408_000, 2.0)
    assert (again.error_W == found.error_W).all()
    assert prospect(expected_curve(1000.0), 1000.0, Evaluations(11, 200, 4)).cost is None


def exact(sd):
    """Return what runs tell whose ceilings have no error but a standard deviation."""
    nothing = [0.0] * 6
    return Prospect(Evaluations(51, 200, 4), 1.0, *nothing, None, np.zeros(40), np.full(40, sd))


@pytest.mark.parametrize(("seeds", "difference"), [(1, 0.05), (5, 0.02)])
def test_the_power_with_known_errors_is_that_of_a_normal_test(seeds, difference):
    # with fits without error, only seeds scatter: power = Phi(d / (0.0122 sqrt(2 / S)) - 1.96)
    power = norm.cdf(difference / (0.0122 * math.sqrt(2 / seeds)) - 1.96)
    assert detection_power(exact(0.0), 0.0122, seeds, difference) == pytest.approx(power, abs=0.02)
    assert detection_power(exact(0.0), 0.0122, seeds, 0.0) == pytest.approx(0.05, abs=0.012)
    assert detection_power(exact(0.02), 0.0122, seeds, difference) < power


@FEW
@pytest.mark.parametrize(
    ("budget", "start"),
    [(1500.0, "Do not plan with the ceiling: "), (6500.0, "Train to 13,000 device-hours to know the ceiling")],
)
def test_a_budget_that_ends_in_the_climb_is_not_promised_a_ceiling(budget, start):
    found = design(papers_runs(), budget, count=51, prompts=200)
    assert found.sentence.startswith(start) and found.recommended.identified < 0.8


@pytest.mark.slow
@FEW
def test_two_recipes_need_more_seeds_for_a_smaller_difference():
    look = papers_runs()
    large, small = (design(look, 16_000.0, count=51, difference=d).two_recipes for d in (0.08, 0.03))
    assert large.best.seeds < small.best.seeds and large.best.cost.compute < small.best.cost.compute
    assert small.best.power >= 0.8 and small.best.cost.compute == 2 * small.best.seeds * small.best.budget
    hopeless = design(look, 16_000.0, count=51, difference=0.001).two_recipes
    assert hopeless.best.power < 0.3 and "needs more than 10 seeds" in hopeless.sentence


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "-5"], "the budget must be a number above 0; got -5"),
        (["--budget", "9", "--evaluations", "4"], "the number of evaluations must be a whole number from 5 to 10,000"),
        (["--budget", "9", "--prompts", "0"], "--prompts: got '0'; allowed: a whole number from 1"),
        (["--budget", "9", "--difference", "2"], "the difference of the ceilings must lie between 0 and 1; got 2"),
        (["none.jsonl", "--budget", "9"], "none.jsonl: no such file"),
        ([], "required: --budget"),
    ],
)
def test_a_number_that_cannot_be_meant_is_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "one.jsonl", run())
    try:
        code, out, error = call(capsys, "design", *words)
    except SystemExit as end:
        code, out, error = end.code, *capsys.readouterr()
    assert (code, out) == (2, "") and message in error and len(error.splitlines()) == 1


@FEW
def test_runs_of_this_package_say_how_large_their_evaluations_are_and_what_they_cost(capsys, tmp_path):
    write_study(tmp_path / "s", {"base": Truth()}, seeds=3)
    paths = sorted(path.parent for path in (tmp_path / "s").rglob("points.jsonl"))
    last = read_points(paths[0])[-1]
    code, out, _ = call(capsys, "design", *paths, "--budget", last.flops, "--evaluations", 26, "--json")
    found = json.loads(out)
    size = found["recommended"]["evaluations"]
    assert code == 0 and (size["prompts"], size["samples"]) == (last.prompts, last.samples_per_prompt)
    assert found["expected"]["source"] == "the fits of 3 runs" and found["noise"]["source"] == "measured"
    assert found["axis"] == "flops" and found["seed_source"] == "estimated from 3 seeds"
    assert found["recommended"]["share"] > 0
    code, out, _ = call(capsys, "design", paths[0], "--budget", 2 * last.flops, "--difference", 0.05)
    assert code == 0 and out.splitlines()[0].startswith(("Train ", "A difference of 0.05 in A"))


def test_runs_with_other_bounds_and_runs_on_two_axes(tmp_path):
    percent = Curve(run().compute, 100 * run().metric, bounds=(0, 100))
    expected = expected_of_runs([fit(percent)])
    found = prospect(expected, percent.last_compute, Evaluations(26, 1000, 4))
    plain = prospect(expected_of_runs([fit(run())]), percent.last_compute, Evaluations(26, 1000, 4))
    assert found.asymptote_within == pytest.approx(100 * plain.asymptote_within, rel=0.2)
    with pytest.raises(CurveError, match="must share axis and bounds"):
        expected_of_runs([fit(percent), fit(run())])
    with pytest.raises(CurveError, match="got no run"):
        expected_of_runs([])


@pytest.mark.slow
def test_the_output_of_the_page_is_that_of_its_command(capsys):
    words = next(
        line for block in blocks("docs/planning.md", "bash") for line in block.splitlines() if "design" in line
    )
    code, out, _ = call(capsys, *words.split()[1:])
    page = (ROOT / "docs/planning.md").read_text()
    shown = next(block for block in page.split("```\n") if block.startswith("Plan 51"))
    assert code == 0 and [line for line in shown.splitlines() if line not in out.splitlines()] == []
