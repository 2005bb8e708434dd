"""Each framework's log gives the same curve: 60 s per step on 8 GPUs, with a score of step / 100 every fifth step."""

import json
import re
from pathlib import Path
from pprint import pformat

import builders
import pytest

from scalerl.reading.curves import Curve, CurveError
from scalerl.reading.logs import read
from scalerl.reading.logs.dialects import verl_devices
from scalerl.reading.tables.table import table_of

LOGS = Path(__file__).parent / "logs"


def write(directory, **files):
    paths = []
    for name, text in files.items():
        path = directory / name.replace("_", ".")
        path.write_text(text)
        paths.append(path)
    return paths


def check(imported, source, expected=builders.EXPECTED):
    assert imported.source == source and imported.axis == "device_hours"
    assert [row["step"] for row in imported.rows] == [step for step, _, _ in expected]
    assert [row["device_hours"] for row in imported.rows] == pytest.approx([hours for _, hours, _ in expected])
    assert [row["pass_rate"] for row in imported.rows] == pytest.approx([score for _, _, score in expected])
    curve = Curve.from_rows(imported.rows)
    assert curve.axis == "device_hours" and len(curve) == len(expected) and curve.label


@pytest.mark.parametrize(
    ("make", "timer", "inside"),  # some versions and forks write the second timer
    [(builders.verl_console, "timing_s/", False), (builders.verl_jsonl, "timing/", True)],
)
def test_verl_times_exclude_validation_and_checkpoints_in_all_versions(tmp_path, make, timer, inside):
    (path,) = write(tmp_path, run_log=make(inside).replace("timing_s/", timer))
    imported = read(path)
    check(imported, "verl")
    assert imported.metric == "val-core/gsm8k/acc/mean@4" and imported.rows[0]["task"] == "gsm8k"
    assert imported.rows[-1]["tokens"] == 4800 * 30
    assert any("subtracted" in note for note in imported.notes) == inside


SETTINGS = {
    "actor_rollout_ref": {"actor": {"optim": {"lr": 1e-6, "betas": (0.9, 0.95)}, "clip_ratio": 0.2}, "hybrid": True},
    "algorithm": {"adv_estimator": "grpo", "kl_ctrl": {"kl_coef": 0.001, "type": "fixed"}},
    "trainer": {"test_freq": 5, "val_before_train": False, "logger": ["console", "wandb"], "project": "a {b} c"},
}


@pytest.mark.parametrize("unclosed", [False, True])
def test_settings_printed_over_several_lines_hide_nothing_and_are_no_evaluation(tmp_path, unclosed):
    before, printed = "\x1b[36m(TaskRunner pid=71)\x1b[0m ", pformat(SETTINGS, width=50).splitlines()
    printed = "".join(f"{before}{line}\n" for line in (printed[:-1] if unclosed else printed))
    (path,) = write(tmp_path, run_log=printed + builders.verl_console())
    imported = read(path)
    check(imported, "verl")
    assert not any("clip_ratio" in name or "test_freq" in name for name in imported.others)
    unevaluated = re.sub(r" - (val-|timing_s/testing)[^ ]*", "", builders.verl_console())
    (path,) = write(tmp_path, run_log=printed + unevaluated)
    assert read(path).metric == "critic/score/mean"


def test_verl_gpus_are_computed_from_the_throughput_and_can_be_overridden(tmp_path):
    (path,) = write(tmp_path, run_log=builders.verl_console())
    assert "8 devices, by perf/throughput" in read(path).axis_origin
    assert read(path, devices=16).rows[-1]["device_hours"] == pytest.approx(8.0)
    # a published line of a run on 8 devices
    published = {"total_num_tokens": 5322462.0, "time_per_step": 1268.4882453735918, "throughput": 524.4886993840887}
    assert verl_devices(table_of([{f"perf/{name}": value for name, value in published.items()}])) == 8


@pytest.mark.parametrize("with_times", [True, False])
def test_prime_rl_of_2026_joins_evaluations_by_policy_version(tmp_path, with_times):
    train, evaluation = builders.prime_rl_of_2026()
    train = train if with_times else train.replace('"time/step": 60.0, ', "")
    paths = write(tmp_path, orchestrator_jsonl=train, evals_jsonl=evaluation)
    imported = read(paths, devices=8)
    check(imported, "prime-rl")
    assert imported.metric == "eval/aime/effective/avg@8"
    assert ("the clock time" in imported.axis_origin) == (not with_times)


def test_trl_sums_its_own_step_times(tmp_path):
    imported = read(LOGS / "trl-whole", devices=2)
    history = json.loads((LOGS / "trl-whole/trainer_state.json").read_text())["log_history"]
    seconds = sum(2 * row["step_time"] for row in history if "step_time" in row and row["step"] <= 6)  # windows of 2
    assert [row["step"] for row in imported.rows] == [0, 2, 4, 6, 8, 10, 12] and imported.rows[0]["device_hours"] == 0
    assert imported.rows[3]["device_hours"] == pytest.approx(seconds * 2 / 3600)
    assert [row["tokens"] for row in imported.rows] == [
        row["eval_num_tokens"] for row in history if "eval_reward" in row
    ]
    assert [row["pass_rate"] for row in imported.rows] == [
        row["eval_reward"] for row in history if "eval_reward" in row
    ]


def test_trl_evaluation_sets_are_found_by_their_runtime_columns():
    imported = read(LOGS / "trl-two", task="few", metric="eval_rewards/digits/mean")
    history = json.loads((LOGS / "trl-two/trainer_state.json").read_text())["log_history"]
    few = [row["eval_rewards/digits/mean"] for row in history if "eval_few_runtime" in row]
    assert [row["pass_rate"] for row in imported.rows] == few and imported.rows[0]["task"] == "few"


def test_tensorboard_files_of_trl_are_read_by_tensorboard_itself():
    pytest.importorskip("tensorboard")
    imported = read(LOGS / "trl-tensorboard", devices=2)
    assert imported.source == "trl" and [row["step"] for row in imported.rows] == [2, 4, 6, 8, 10, 12]
    assert imported.rows[-1]["tokens"] > imported.rows[0]["tokens"] > 0 and imported.rows[-1]["device_hours"] > 0


def test_an_offline_run_of_wandb_gets_the_way_to_export_it(tmp_path):
    (tmp_path / "run-1.wandb").write_bytes(b":W&B\x00\x00\x00")
    with pytest.raises(CurveError, match="wandb sync"):
        read(tmp_path)


def test_a_table_keeps_its_columns(tmp_path):
    lines = ["gpu_hours,iteration,acc,se", *(f"{8 * n},{n},{n / 100},0.01" for n in range(6))]
    (path,) = write(tmp_path, table_csv="\n".join(lines) + "\n")
    columns = {"device_hours": "gpu_hours", "step": "iteration", "stderr": "se"}
    imported = read(path, metric="acc", columns=columns)
    assert imported.source == "table" and imported.rows[2] == {
        "step": 2, "device_hours": 16.0, "pass_rate": 0.02, "stderr": 0.01, "task": "acc", "kind": "training reward",
    }  # fmt: skip


RUNS = (("slow", 100), ("fast", 50))
CHART = "Step,slow - eval/accuracy,slow - eval/accuracy__MIN,fast - eval/accuracy\n" + "".join(
    f"{step},{step / 100},0,{step / 50}\n" for step in range(0, 31, 5)
)
TABLE = "step,run,pass_rate\n" + "".join(f"{s},{run},{s / by}\n" for s in range(0, 31, 5) for run, by in RUNS)


@pytest.mark.parametrize("text", [CHART, TABLE])
def test_one_run_of_several_in_a_file_is_chosen_by_its_name(tmp_path, text):
    (path,) = write(tmp_path, runs_csv=text)
    for run, by in RUNS:
        imported = read(path, run=run)
        assert [(row["step"], row["pass_rate"]) for row in imported.rows] == [(s, s / by) for s in range(0, 31, 5)]
    with pytest.raises(CurveError, match="2 runs"):
        read(path)
    with pytest.raises(CurveError, match="'fats'"):
        read(path, run="fats")


@pytest.mark.parametrize(("column", "hours"), [
    ("elapsed_hours", 2.0), ("Wall Clock (min)", 120.0), ("run_time_ms", 7.2e6), ("cpu-hours", None),
    ("H100-hours", 16.0), ("gpu_days", 2 / 3),
])  # fmt: skip
def test_hours_of_a_clock_are_multiplied_and_hours_of_devices_are_not(tmp_path, column, hours):
    """Two hours of eight devices, in the unit that a column's name has; None: it is neither."""
    last = 1.0 if hours is None else hours
    rows = [f"{10 * n},{last * n / 8:g},{n / 20}" for n in range(9)]
    (tmp_path / "log.csv").write_text("\n".join([f"step,{column},val_acc", *rows]) + "\n")
    log = read(tmp_path / "log.csv", devices=8)
    if hours is None:
        assert log.axis == "step"
    else:
        assert log.axis == "device_hours" and log.rows[-1]["device_hours"] == pytest.approx(16.0)


@pytest.mark.parametrize(("words", "steps"), [
    (["0k", "2k", "4.5k", "8k", "9k"], [0, 2000, 4500, 8000, 9000]),
    ([f"checkpoint-{step}" for step in (50, 100, 200, 400, 800)], [50, 100, 200, 400, 800]),
])  # fmt: skip
def test_steps_that_are_text_are_steps(tmp_path, words, steps):
    """They were counted from 1, so that unequal gaps became equal."""
    column = "step" if words[0] == "0k" else "checkpoint"
    rows = [f"{word},{n / 10}" for n, word in enumerate(words)]
    (tmp_path / "log.csv").write_text("\n".join([f"{column},val_acc", *rows]) + "\n")
    assert [row["step"] for row in read(tmp_path / "log.csv").rows] == steps


def test_evaluations_without_a_step_have_that_of_the_row_before(tmp_path):
    rows = []
    for step in range(1, 31):
        rows.append({"step": step, "reward": step / 100})
        if step % 5 == 0:
            rows.append({"eval_accuracy": step / 60})
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, [{"eval_accuracy": 0.0}, *rows])) + "\n")
    log = read(tmp_path / "log.jsonl")
    assert [row["step"] for row in log.rows] == [0, 5, 10, 15, 20, 25, 30]
    assert "take that of the row before" in log.notes[0]


def test_one_evaluation_at_step_minus_one_is_the_one_before_training(tmp_path):
    rows = [f"{step},{max(step, 0) / 100}" for step in (-1, 9, 19, 29, 39, 49)]
    (tmp_path / "log.csv").write_text("\n".join(["step,eval_acc", *rows]) + "\n")
    assert [row["step"] for row in read(tmp_path / "log.csv").rows] == [0, 9, 19, 29, 39, 49]


def test_a_number_of_right_answers_ends_at_the_number_of_all(tmp_path):
    """A number up to 100 was taken for a percentage."""
    rows = [f"{step},{10 + step},80" for step in range(0, 60, 10)]
    (tmp_path / "log.csv").write_text("\n".join(["step,val_correct,val_total", *rows]) + "\n")
    log = read(tmp_path / "log.csv")
    assert (log.metric, log.bounds) == ("val_correct", (0.0, 80.0))


@pytest.mark.parametrize(("column", "value"), [
    ("step_time_ms", 3.6e5), ("hours per iteration", 0.1),
])  # fmt: skip
def test_the_time_of_a_step_has_the_unit_of_its_name(tmp_path, column, value):
    """Ten steps of six minutes are an hour of eight devices."""
    rows = [f"{n},{value},{n / 20}" for n in range(1, 11)]
    (tmp_path / "log.csv").write_text("\n".join([f"step,{column},val_acc", *rows]) + "\n")
    log = read(tmp_path / "log.csv", devices=8)
    assert log.rows[-1]["device_hours"] == pytest.approx(8.0)


@pytest.mark.parametrize(("column", "flops"), [("PFLOPs", 8e15), ("train_flops", 8.0)])
def test_counted_flops_have_the_unit_of_their_name_and_a_rate_is_no_total(tmp_path, column, flops):
    rows = [f"{n},{n / 20},250" for n in range(9)]
    (tmp_path / "log.csv").write_text("\n".join([f"{column},val_acc,tflops", *rows]) + "\n")
    log = read(tmp_path / "log.csv")
    assert log.axis == "flops" and log.rows[-1]["flops"] == flops


@pytest.mark.parametrize("name", ["val_aime_2024", "MATH-500"])
def test_an_evaluation_on_a_benchmark_is_a_score_before_the_reward_of_training(tmp_path, name):
    rows = [{"step": n, "train/reward": n / 100, **({name: n / 60} if n % 5 == 0 else {})} for n in range(40)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    log = read(tmp_path / "log.jsonl")
    assert (log.metric, log.training, len(log.rows)) == (name, False, 8)
