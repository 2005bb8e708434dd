"""Results of a study with known truth: verdicts, documented JSON, and tables for terminals and logs."""

import io
import json
import re

import pytest
from doc_pages import ROOT, json_keys
from rich.console import Console
from simulated_study import KNOWN, Truth, write_study

from scalerl.reading.pages.study import study_results
from scalerl.reading.pages.study_results import EFFECTS, reasons
from scalerl.reading.pages.study_tables import print_results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return study_results(write_study(tmp_path_factory.mktemp("study") / "known", KNOWN, about="What matters?"))


def printed(results, width=80, **options):
    out = io.StringIO()
    print_results(results, Console(file=out, width=width, **options))
    return out.getvalue()


def test_each_truth_gets_its_verdict(results):
    effects = {arm.name: arm.effect for arm in results.arms}
    assert effects == {
        "scalerl": "reference", "dapo": "lowers", "slow": "less_efficient", "fp32": "none", "young": "unknown",
        "broken": "unknown",
    }  # fmt: skip


def test_the_intervals_contain_the_truth(results):
    assert results.arm("scalerl").asymptote.low < 0.61 < results.arm("scalerl").asymptote.high
    lowered = results.arm("dapo").comparison.asymptote_difference
    assert lowered.low < -0.08 < lowered.high < 0
    ratio = results.arm("slow").comparison.efficiency_ratio
    assert ratio.low < 1.2 / 1.9 < ratio.high


def test_arms_without_an_effect_get_a_bound_on_undetected_differences(results):
    difference = results.arm("fp32").comparison.asymptote_difference
    assert results.arm("fp32").excluded == max(-difference.low, difference.high) < 0.03
    assert f"beyond ±{results.arm('fp32').excluded:.3f} are excluded" in results.headlines()[-1]


def test_a_shift_along_the_compute_axis_is_detected_with_equal_a_and_b(tmp_path):
    truths = {"scalerl": Truth(), "late": Truth(midpoint=7.5e13)}  # 1.5 times the default
    (late,) = study_results(write_study(tmp_path / "s", truths)).ranked()
    assert (
        late.effect == "more_compute" and late.comparison.compute_ratio.low < 1.5 < late.comparison.compute_ratio.high
    )


def test_an_arm_without_a_fit_gives_each_reason_once(results):
    assert "got 4" in reasons(results.arm("young").runs)
    assert reasons(results.arm("broken").runs) == "failed: loss is not finite at step 3"
    assert results.arm("broken").problems[2] == "seed 2: failed: loss is not finite at step 3"


def test_the_keys_of_the_json_are_as_documented(results):
    keys, values = json_keys(), json.loads(json.dumps(results.to_dict(), allow_nan=False))
    assert set(values) == keys["study show"]
    assert all(set(arm) == keys["Arm"] for arm in values["arms"])
    assert all(set(run) == keys["Study run"] for arm in values["arms"] for run in arm["runs"])
    assert all(set(arm["metrics"]) == keys["Metrics"] for arm in values["arms"])
    assert {f"`{effect}`" for effect in EFFECTS} <= set(re.findall(r"`\w+`", (ROOT / "docs/json.md").read_text()))


def test_text_of_plans_is_not_read_as_markup(tmp_path):
    truths = {"scalerl": Truth(last_step=-1), "fp32": Truth(last_step=-1, failed="[red]no[/red] [bold")}
    results = study_results(write_study(tmp_path / "markup", truths, about="[b]why[/b]?"))
    text = printed(results, force_terminal=True, width=120)
    assert "[b]why[/b]?" in text and "[red]no[/red]" in text
