"""What the next gain costs: the same words and numbers in every output."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from commands import call
from simulated_runs import run
from simulated_study import Truth, write_study

from scalerl.cli.plan import next_gains
from scalerl.reading.curves import Curve, CurveError, Fit, advise, compare, fit, frontier
from scalerl.reading.curves.price import next_gain
from scalerl.reading.curves.units import number_text
from scalerl.reading.pages.page import study_page
from scalerl.reading.pages.study import study_results
from scalerl.reading.pages.study_files import read_files


def test_the_gain_and_the_cost_are_those_of_the_advice():
    fitted = fit(run(last=5000.0))
    advice, ahead = advise(fitted, price=2.5), next_gain(fitted, 2.5)
    assert ahead.gain == advice.gain and ahead.cost == advice.cost and ahead.budget == advice.budget == 10_000.0
    assert f"should gain {ahead.gain:.3f}" in advice.sentence and f"another {ahead.cost}" in advice.sentence
    # 5,000 more device-hours at $2.50
    assert ahead.cost.money == 12_500.0 and ahead.cost.per_point == pytest.approx(12_500 / (100 * ahead.gain.mean))
    assert str(ahead).endswith(
        f"for another 5,000 device-hours ($12,500), ${number_text(ahead.cost.per_point)} per point"
    )


def test_the_next_gain_of_several_runs_is_their_mean_with_a_narrower_interval():
    fits = [fit(run(last=5000.0, seed=seed)) for seed in range(3)]
    each, of_all = [next_gain(f) for f in fits], next_gain(fits)
    assert of_all.gain.mean == pytest.approx(np.mean([one.gain.mean for one in each]))
    assert of_all.gain.sd < 0.8 * np.mean([one.gain.sd for one in each])
    assert of_all.cost.device_hours == 5000.0 and of_all.cost.money != of_all.cost.money


def test_a_comparison_says_what_the_next_gain_of_each_side_costs():
    slow = Curve(2 * run(seed=1).compute, run(seed=1).metric, axis="device_hours")
    both = compare(run(seed=1), slow, names=("dapo", "grpo"), price=2.5)
    lines = [f"  next gain of {name}: {ahead}" for name, ahead in zip(both.names, both.next_gains, strict=True)]
    assert str(both).splitlines()[-2:] == lines and "$40,000" in lines[0] and "$80,000" in lines[1]
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert "\n".join(lines) in page
    assert "($" not in str(compare(run(seed=1), slow))


def grid():
    return [run(midpoint=500.0 * size, seed=size) for size in (1, 2, 4, 8)], [{"size": s} for s in (1, 2, 4, 8)]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_study(
        tmp_path_factory.mktemp("study") / "loo", {"scalerl": Truth(), "fp32": Truth(midpoint=4e13)}
    ).path


def test_a_study_says_what_the_next_gain_of_each_arm_costs(study, capsys):
    results = study_results(read_files(study), price=2.5)
    code, out, _ = call(capsys, "study", "show", study, "--price", "2.5")
    flat = re.sub(r"\s+", " ", out)
    for arm in results.arms:
        assert f"{arm.name}: {arm.next_gain}" in flat and arm.next_gain.cost.money > 0
        assert arm.next_gain == next_gain(arm.fits, 2.5)
    (table,) = (block for block in study_page(results)["blocks"] if block.get("title") == "Side by side")
    column = table["columns"].index("Cost of this gain")
    assert [row[column]["text"] for row in table["rows"]] == [str(arm.next_gain.cost) for arm in results.arms]
    code, out, _ = call(capsys, "study", "show", study, "--json", "--price", "2.5")
    assert code == 0 and json.loads(out)["arms"][0]["next_gain"]["cost"]["money"] > 0


PLAN = ["plan", "--generator-tokens-per-s", "20000", "--trainer-tokens-per-s", "30000", "--updates", "8"]


def test_a_plan_says_what_the_whole_run_costs(capsys):
    code, out, _ = call(capsys, *PLAN, "--steps", "100", "--evaluation.every", "10", "--price", "2.5", "--json")
    best = json.loads(out)["best"]
    # 100 updates with 1 + 100 / every evaluations, on the one CPU
    assert (
        code == 0
        and best["money"] == pytest.approx(2.5 * best["device_hours"])
        and best["hours"] == best["device_hours"]
    )
    assert best["hours"] == pytest.approx(100 / best["evaluated_updates_per_h"] + best["eval_s"] / 3600, rel=1e-6)
    _, out, _ = call(capsys, *PLAN, "--steps", "100", "--price", "2.5")
    assert re.search(r"^cost: 100 updates and their evaluations take .* device-\w+ \(\$[\d.,]+\)$", out, re.MULTILINE)
    _, out, _ = call(capsys, *PLAN, "--steps", "100")
    assert "cost: 100 updates" in out and "$" not in out


def test_a_price_without_device_hours_is_an_error_everywhere():
    steps = [Curve(curve.compute, curve.metric, axis="step") for curve in grid()[0]]
    with pytest.raises(CurveError, match="has only steps"):
        compare(steps[0], steps[1], price=2.5)
    with pytest.raises(CurveError, match="has only steps"):
        frontier(steps, grid()[1], 2000.0, price=2.5)
    # without a price the cost is in compute
    assert "for another 16,000 steps" in str(compare(steps[0], steps[1]))
    assert isinstance(compare(steps[0], steps[1]).sides[0][0], Fit)


def test_a_plan_from_a_run_says_what_the_next_gain_of_the_run_costs(study, tmp_path):
    path = study / "scalerl" / "seed-0"
    (ahead,) = next_gains([path], 2.5).values()
    assert ahead == next_gain(fit(Curve.read(path, compute=read_files(study).axis())), 2.5)
    young = write_study(tmp_path / "young", {"scalerl": Truth(last_step=8)}).path / "scalerl" / "seed-0"
    (problem,) = next_gains([young], None).values()
    assert problem.startswith("not known (a fit needs at least 5 points; got 2")
