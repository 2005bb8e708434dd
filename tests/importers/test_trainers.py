"""Each trainer's log is read without options but the devices: 30 steps of 60 s on 8 devices, a score every fifth step.

The names are those of the file that the trainer's row in the table of dialects names; the numbers are made up.
"""

import gzip
import json
import shlex
import sqlite3
import sys
import types

import builders
import pytest

from scalerl import cli
from scalerl.reading.curves import Curve, CurveError
from scalerl.reading.logs import read

STEPS = range(1, 31)
ZERO = range(30)  # of trainers that count from 0


def score(step):
    return step / 100


def reward(step):
    return 0.2 + step / 100


def every_fifth(step, row):
    return row if step % 5 == 0 else {}


RUNS = {
    "slime": (
        [{"rollout/step": s, "rollout/raw_reward": reward(s), "rollout/response_lengths": 90} for s in ZERO]
        + [{"rollout/step": s, "perf/step_time": 60.0, "perf/train_time": 25.0} for s in ZERO]
        + [{"eval/step": s - 1, "eval/aime": score(s), "eval/aime-truncated_ratio": 0.1} for s in STEPS if s % 5 == 0],
        "eval/aime", "rollout/raw_reward",
    ),
    "nemo-rl": (
        [{"step": s, "train/reward": reward(s), "timing/train/total_step_time": 60.0, "train/global_valid_toks": 4800,
          **every_fifth(s, {"validation/accuracy": score(s), "validation/avg_length": 90.0})} for s in STEPS],
        "validation/accuracy", "train/reward",
    ),
    "openrlhf": (
        [{"train/global_step": s, "train/reward": reward(s), "train/policy_loss": 0.1, "train/timing/generation": 35.0,
          "train/timing/make_experience": 10.0, "train/timing/ppo_train": 10.0, "train/timing/broadcast": 5.0}
         for s in STEPS]
        + [{"eval/global_step": s, "eval/eval_math_pass1": score(s), "eval/eval_math_pass4": 0.9}
           for s in STEPS if s % 5 == 0],
        "eval/eval_math_pass1", "train/reward",
    ),
    "tinker": (
        [{"step": s, "progress/batch": s, "progress/done_frac": s / 30, "env/all/reward/total": reward(s),
          "env/all/total_ac_tokens": 4000, "env/all/total_ob_tokens": 800, "time/total": 60.0 + 20.0 * (s % 5 == 0),
          **every_fifth(s, {"time/run_evals": 20.0, "test/env/all/correct": score(s)})} for s in range(31)],
        "test/env/all/correct", "env/all/reward/total",
    ),
    "areal": (
        [{"step": s, "ppo_actor/task_reward/avg": reward(s), "rollout/reward": reward(s), "timeperf/rollout": 40.0,
          "timeperf/train_step": 20.0, "timeperf/eval": 9.0, "ppo_actor/n_tokens": 4800,
          **every_fifth(s + 1, {"eval-rollout/reward": score(s + 1)})} for s in ZERO],
        "eval-rollout/reward", "ppo_actor/task_reward/avg",
    ),
    "roll": (
        [{"step": s, "critic/score/mean": reward(s), "critic/rewards/mean": 0.1, "time/step_generate": 30.0,
          "time/step_total": 60.0 + 20.0 * (s % 5 == 0), "system/tps": 80.0, "critic/score/min": 0.0,
          "critic/score/max": 1.0,
          **every_fifth(s, {"val_correct/all/mean": score(s), "val_correct/aime/mean": 0.3, "time/val_step": 20.0})}
         for s in range(31)],
        "val_correct/all/mean", "critic/score/mean",
    ),
    "trl": (
        [{"step": s, "reward": reward(s), "rewards/accuracy/mean": reward(s), "completions/mean_length": 80.0,
          "step_time": 60.0, "num_tokens": 4800.0 * s, "frac_reward_zero_std": 0.1} for s in STEPS]
        + [{"step": s, "eval_reward": score(s), "eval_rewards/accuracy/mean": score(s), "eval_runtime": 9.0}
           for s in STEPS if s % 5 == 0],
        "eval_reward", "rewards/accuracy/mean",
    ),
    "ms-swift": (
        [{"global_step/max_steps": f"{s}/30", "reward": reward(s), "completions/mean_length": 80.0,
          "elapsed_time": f"{s}m 0s", "memory(GiB)": 70.0, "train_speed(iter/s)": 0.016,
          **every_fifth(s, {"eval_reward": score(s)})} for s in STEPS],
        "eval_reward", "reward",
    ),
    "prime-rl": (
        [{"step": s, "train/agg/all/agent/reward/mean": reward(s), "time/step": 60.0, "progress/tokens": 4800}
         for s in ZERO]
        + [{"step": s, "eval/aime/effective/agent/avg@8": score(s), "eval/aime/all/agent/avg@8": 0.1,
            "eval/aime/policy_version": s} for s in STEPS if s % 5 == 0],
        "eval/aime/effective/agent/avg@8", "train/agg/all/agent/reward/mean",
    ),
    "open-instruct": (
        [{"training_step": s, "episode": 64 * s, "objective/verifiable_correct_rate": reward(s), "time/total": 60.0,
          "val/num_step_tokens": 4800, "val/ratio": 1.0, "val/num_total_tokens": 4800 * s,
          **every_fifth(s, {"eval/pass_at_1": score(s)})} for s in STEPS],
        "eval/pass_at_1", "objective/verifiable_correct_rate",
    ),
    "skyrl": (
        [{"trainer/global_step": s, "reward/avg_raw_reward": reward(s), "timing/step": 60.0, "timing/generate": 40.0,
          **every_fifth(s, {"eval/all/avg_score": score(s), "eval/aime/avg_score": 0.3})} for s in STEPS],
        "eval/all/avg_score", "reward/avg_raw_reward",
    ),
    "verl": (
        [{"training/global_step": s, "critic/score/mean": reward(s), "timing_s/step": 60.0,
          "perf/total_num_tokens": 4800,
          **every_fifth(s, {"val-core/aime/acc/mean@8": score(s), "val-core/aime/acc/best@8/mean": 0.9})}
         for s in STEPS],
        "val-core/aime/acc/mean@8", "critic/score/mean",
    ),
}  # fmt: skip


def write(path, rows):
    path.write_text(builders.jsonl(rows))
    return path


@pytest.mark.parametrize("trainer", RUNS)
def test_a_trainers_log_gives_the_held_out_curve_in_device_hours(tmp_path, trainer):
    rows, metric, training = RUNS[trainer]
    imported = read(write(tmp_path / "log.jsonl", rows), devices=8)
    assert (imported.source, imported.metric, imported.training) == (trainer, metric, False)
    assert imported.axis == "device_hours" and imported.rows[-1]["device_hours"] == pytest.approx(4.0)
    assert imported.rows[-1]["pass_rate"] == pytest.approx(0.3) and len(imported.rows) >= 6
    assert training in imported.others


@pytest.mark.parametrize("trainer", RUNS)
def test_without_an_evaluation_the_reward_of_training_is_the_curve_and_is_called_that(tmp_path, trainer):
    rows, _, training = RUNS[trainer]
    held_out = ("eval", "val_", "val-", "validation", "test/")
    rows = [{n: v for n, v in row.items() if not n.startswith(held_out)} for row in rows]
    imported = read(write(tmp_path / "log.jsonl", rows), devices=8)
    assert (imported.source, imported.metric, imported.training) == (trainer, training, True)
    assert "training reward, not held out" in imported.lines()[1]
    assert {row["kind"] for row in imported.rows} == {"training reward"} and imported.rows[-1]["stderr"] >= 0
    curve = Curve.from_rows(imported.rows)
    assert curve.training and "training reward" in curve.label and imported.rows[-1]["device_hours"] > 3.9


@pytest.mark.parametrize(("trainer", "separator"), [("verl", "_"), ("nemo-rl", " / "), ("tinker", ".")])
def test_names_of_another_logger_are_recognized(tmp_path, trainer, separator):
    rows, _, _ = RUNS[trainer]
    rows = [{name.replace("/", separator): value for name, value in row.items()} for row in rows]
    imported = read(write(tmp_path / "log.jsonl", rows), devices=8)
    assert imported.source == trainer and imported.rows[-1]["device_hours"] == pytest.approx(4.0)
    assert imported.rows[-1]["pass_rate"] == pytest.approx(0.3)


class FakeRun:
    def scan_history(self):
        return iter({"_step": s, "_runtime": 60.0 * s, "eval/accuracy": score(s), "_wandb": {"x": 1}} for s in STEPS)


def fake_wandb(run):
    return types.SimpleNamespace(Api=lambda **options: types.SimpleNamespace(run=run))


def test_a_run_on_wandb_is_read_by_its_name_or_its_address(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(lambda path: {"team/project/abc": FakeRun()}[path]))
    for name in ("wandb:team/project/abc", "https://wandb.ai/team/project/runs/abc?nw=1"):
        imported = read(name, devices=8)
        assert imported.metric == "eval/accuracy" and imported.rows[-1]["device_hours"] == pytest.approx(4.0)


@pytest.mark.parametrize("error", [ConnectionError("no route to host"), ValueError("Could not find run <Run abc>")])
def test_a_tracker_that_does_not_answer_and_a_deleted_run_are_one_line_with_a_way_on(monkeypatch, error):
    def fail(path):
        raise error

    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(fail))
    with pytest.raises(CurveError, match="cannot be read") as caught:
        read("wandb:team/project/abc")
    assert (
        str(error)[:10] in str(caught.value) and "`wandb login`" in str(caught.value) and "\n" not in str(caught.value)
    )


def test_logs_of_several_runs_are_not_parts_of_one(tmp_path):
    paths = [
        write(tmp_path / f"run{n}.jsonl", [{"step": s, "accuracy": s / (40 * n)} for s in STEPS]) for n in (1, 2, 3)
    ]
    with pytest.raises(CurveError, match="3 runs, because each begins at step 1") as caught:
        read(paths)
    assert caught.value.paths == (str(paths[0]),)


def as_text(row):
    return {name: str(value) for name, value in row.items()}


def bars(rows):
    return "".join(f"\r {s}%|##  | {s}/30 [00:{s:02}<01:00, 60.0s/it]{as_text(row)}" for s, row in enumerate(rows, 1))


def blocks(rows):
    text = ""
    for row in rows:
        text += f"\n========================= Step {row['step']}/30 =========================\n"
        if "validation/accuracy" in row:
            text += f"📊 Validation Results:\n    • Accuracy: {row['validation/accuracy']}\n"
        text += f"📊 Training Results:\n  • Loss: 0.1\n  • Avg Reward: {row['train/reward']:.4f}\n"
        text += "⏱️  Timing:\n  • Total step time: 60.00s\n  • generation: 31.00s (51.7%)\n"
    return text


def slime_console(rows):
    lines = []
    for row in rows:
        word = next(word for word in ("rollout", "eval") if f"{word}/step" in row)
        rest = {name: value for name, value in row.items() if not name.endswith("/step")}
        lines.append(f"[2026-01-01 00:00:00] (Actor pid=9) metrics.py:9 - {word} {row[word + '/step']}: {rest}\n")
    return "".join(lines)


def printed(template):
    return "".join(template.format(s=s, r=f"{reward(s):.4f}", t=f"{60 * s}.0s") + "\n" for s in STEPS)


TRL_ROWS = [row for row in RUNS["trl"][0] if "reward" in row]
CONSOLES = {
    "bars": (bars([{n: v for n, v in row.items() if n != "step"} for row in TRL_ROWS]), "trl", 30, 4.0),
    "blocks": (blocks(RUNS["nemo-rl"][0]), "nemo-rl", 6, 4.0),
    "slime": (slime_console(RUNS["slime"][0]), "slime", 6, 4.0),
    "openrlhf": (
        printed("INFO ✨ Global step {s}: {{'reward': {r}, 'timing/make_experience': 40.0, 'timing/ppo_train': 20.0}}"),
        "openrlhf", 30, 4.0,
    ),
    "grid": (
        printed(
            "Epoch 1/1 Step {s}/30 Train step {s}/30 done.\n│ ppo_actor/task_reward/avg │ {r} │ timeperf/rollout │ "
            "4.0000e+01 │\n│ timeperf/train_step │ 2.0000e+01 │ │ │"
        ),
        "areal", 30, 4.0,
    ),
    "prime-rl": (printed("12:00:01 SUCCESS Step {s} | 60.0s | Reward {r} | Entropy 0.3"), "table", 30, 4.0),
    "words": (printed("step {s}: mean reward {r}, kl 0.01, step time 60.0s"), "table", 30, 4.0),
    "steps of epochs": (
        "".join(f"Epoch {e} | Step {s} | Reward: {reward(s):.3f} | step_time: 60.0\n" for e in (0, 1)
                for s in range(15)),
        "table", 30, 4.0,
    ),
    "dates": (printed("2026-01-01 00:{s:02}:00 INFO step {s} mean_reward: {r}"), "table", 30, 4.0),
}  # fmt: skip


@pytest.mark.parametrize("form", CONSOLES)
def test_a_console_is_read_whatever_its_form(tmp_path, form):
    text, source, count, hours = CONSOLES[form]
    path = tmp_path / "output.log.gz"
    path.write_bytes(gzip.compress(text.encode()))
    imported = read(path, devices=8)
    assert (imported.source, imported.values) == (source, count), imported
    assert imported.axis == "device_hours" and imported.rows[-1]["device_hours"] == pytest.approx(hours)


TABLE = [{"Step": s, "Training Loss": 0.1, "reward": round(reward(s), 4), "kl": 0.01} for s in STEPS]


def html(rows):
    cells = "".join("<tr>" + "".join(f"<td>{v}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{''.join(f'<th>{n}</th>' for n in rows[0])}</tr></thead><tbody>{cells}</tbody></table>"


def notebook(*outputs):
    cells = [{"cell_type": "code", "source": [], "outputs": [output]} for output in outputs]
    return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})


def shown(rows):
    return {"output_type": "display_data", "data": {"text/html": [html(rows)]}}


def markdown(rows):
    lines = [f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0])]
    return "\n".join(["# My run", "", *lines, *(f"| {' | '.join(map(str, row.values()))} |" for row in rows), ""])


TABLES = {
    "run.ipynb": notebook(shown(TABLE)),
    "README.md": markdown(TABLE),
    "page.html": f"<p>run</p>{html(TABLE)}",
    "points.txt": builders.as_csv(TABLE).replace("Training Loss", "loss").replace(",", " "),
    "semicolon.csv": builders.as_csv(TABLE).replace(",", ";").replace(".", ","),
    "columns.json": json.dumps({name: [row[name] for row in TABLE] for name in TABLE[0]}),
    "pretty.jsonl": "\n".join(json.dumps(row, indent=1) for row in TABLE),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_read_whatever_its_form(tmp_path, name):
    (tmp_path / name).write_text(TABLES[name])
    imported = read(tmp_path / name)
    assert imported.metric == "reward" and imported.training and imported.values == 30
    assert imported.rows[-1]["step"] == 30 and imported.rows[-1]["pass_rate"] == pytest.approx(0.5)


def test_stores_of_mlflow_and_trackio_are_read(tmp_path):
    run = tmp_path / "mlruns/0/abc"
    (run / "params").mkdir(parents=True)
    (run / "metrics/eval").mkdir(parents=True)
    lines = "".join(f"{1700000000000 + 60000 * s} {score(s)} {s}\n" for s in STEPS)
    (run / "metrics/eval/accuracy").write_text(lines)
    imported = read(tmp_path / "mlruns", devices=8)
    assert imported.metric == "eval/accuracy" and imported.rows[-1]["device_hours"] == pytest.approx(4.0)
    with sqlite3.connect(tmp_path / "mlflow.db") as base:
        base.execute("create table metrics (key, value, timestamp, run_uuid, step, is_nan)")
        rows = [("eval/accuracy", score(s), 1700000000000 + 60000 * s, "abc", s, 0) for s in STEPS]
        base.executemany("insert into metrics values (?, ?, ?, ?, ?, ?)", rows)
    assert read(tmp_path / "mlflow.db", devices=8).rows[-1]["device_hours"] == pytest.approx(4.0)
    with sqlite3.connect(tmp_path / "trackio.db") as base:
        base.execute("create table metrics (id integer primary key, timestamp, run_name, step, metrics)")
        rows = [
            (f"2026-01-01T00:{s:02}:00", run, s, json.dumps({"train/reward": reward(s)})) for s in STEPS for run in "ab"
        ]
        base.executemany("insert into metrics (timestamp, run_name, step, metrics) values (?, ?, ?, ?)", rows)
    with pytest.raises(CurveError, match="2 runs"):
        read(tmp_path / "trackio.db")
    imported = read(tmp_path / "trackio.db", run="b", devices=8)
    assert imported.training and imported.rows[-1]["device_hours"] == pytest.approx(4.0)


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"step": s, "loss": 1 / s, "rewards/chosen": 0.1, "rewards/accuracies": s / 40, "logps/chosen": -9}
            for s in STEPS
        ],
        [{"step": s, "loss": 1 / s, "mean_token_accuracy": 0.7, "eval_loss": 0.4} for s in STEPS],
    ],
)
def test_supervised_training_dpo_and_reward_models_are_declined_in_one_sentence(tmp_path, rows):
    with pytest.raises(CurveError, match="supervised training, DPO or a reward model") as caught:
        read(write(tmp_path / "log.jsonl", rows))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["eval/kl", "eval/samples_per_second"])
def test_what_is_no_score_is_not_taken_for_one(tmp_path, name):
    with pytest.raises(CurveError, match="no score or reward"):
        read(write(tmp_path / "log.jsonl", [{"step": s, name: s / 40} for s in STEPS]))


def test_the_summary_at_the_end_of_training_is_no_point(tmp_path):
    rows = [{"step": s, "reward": reward(s), "completions/mean_length": 9.0, "num_tokens": 10.0 * s} for s in STEPS]
    summary = {"step": 30, "train_runtime": 1800.0, "reward": 0.1, "num_tokens": 0.0, "train_loss": 0.1}
    imported = read(write(tmp_path / "log.jsonl", [*rows, summary]))
    assert imported.values == 30 and imported.rows[-1]["tokens"] == 300 and imported.rows[-1]["pass_rate"] == 0.5


@pytest.mark.parametrize("column", ["Name", "seed"])
def test_runs_told_apart_by_a_column_are_listed_and_one_is_chosen(tmp_path, column):
    rows = [{column: word, "step": s, "accuracy": s / by} for word, by in (("7", 100), ("8", 50)) for s in STEPS]
    rows = rows if column == "seed" else [{**row, column: f"run {row[column]}"} for row in rows]
    path = write(tmp_path / "log.jsonl", rows)
    word = "8" if column == "seed" else "run 8"
    with pytest.raises(CurveError, match="2 runs"):
        read(path)
    assert read(path, run=word).rows[-1]["pass_rate"] == pytest.approx(0.6)


def test_the_counter_of_calls_of_wandb_is_no_step(tmp_path):
    rows, count = [], 0
    for step in STEPS:
        for call in range(2):
            count += 1
            value = {"train/reward": reward(step)} if call == 0 else {f"train/lr{call}": 1e-6}
            rows.append({"_step": count, "_runtime": 60.0 * step + call, **value})
    imported = read(write(tmp_path / "log.jsonl", rows), devices=8)
    assert imported.rows[-1]["step"] == 30 and imported.rows[-1]["device_hours"] == pytest.approx(4.0)
    assert any("counts calls of log" in note for note in imported.notes)


def test_what_the_reward_of_training_hides_is_marked(tmp_path):
    rows = [{"step": s, "reward": reward(s), "num_gen_batches": 1 + s % 3, "rewards/overlong_penalty/mean": -s / 99,
             "completions/mean_length": 9.0} for s in STEPS]  # fmt: skip
    notes = " ".join(read(write(tmp_path / "log.jsonl", rows)).notes)
    assert "dynamic sampling" in notes and "length penalty" in notes


CLOCKS = {
    "elapsed_time": lambda s: f"0:{s:02}:00",
    "_runtime": lambda s: 500 + 60.0 * s,
    "date": lambda s: f"2026-01-01T00:{s:02}:00",
    "it/s": lambda s: 1 / 60,
    "hours": lambda s: s / 60,
}


@pytest.mark.parametrize("name", CLOCKS)
def test_clocks_in_the_usual_forms_give_device_hours(tmp_path, name):
    rows = [{"iteration": s, "eval/accuracy": score(s), name: CLOCKS[name](s)} for s in STEPS]
    imported = read(write(tmp_path / "log.jsonl", rows), devices=8)
    assert imported.rows[-1]["device_hours"] == pytest.approx(4.0) and imported.rows[-1]["step"] == 30


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ([], [{"run": run, "step": s, "accuracy": s / 99} for run in "ab" for s in STEPS]),
        (["--bounds", "0", "0.1"], [{"step": s, "accuracy": s / 99} for s in STEPS]),
        ([], [{"step": s, "quality": s / 99} for s in STEPS]),
        ([], [{"prompt": "x"}]),
    ],
)
def test_an_error_is_one_line_and_ends_with_a_command_that_works(tmp_path, capsys, monkeypatch, words, rows):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log.jsonl", rows)
    assert cli.main(["fit", "log.jsonl", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error and "; type: scalerl " in error
    assert cli.main(shlex.split(error.rpartition("; type: scalerl ")[2])) == 0


def test_rows_that_say_train_or_eval_are_told_apart(tmp_path):
    rows = [{"split": "train", "step": s, "accuracy": 0.9} for s in STEPS]
    rows += [{"split": "val", "step": s, "accuracy": score(s)} for s in STEPS if s % 5 == 0]
    imported = read(write(tmp_path / "log.jsonl", rows))
    assert imported.metric == "val/accuracy" or imported.metric == "eval/accuracy"
    assert [row["pass_rate"] for row in imported.rows] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
