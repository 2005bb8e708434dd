"""Logs in the formats of frameworks that need GPUs, with the column names of their source code and round values.

Every run takes 60 s per step on 8 GPUs. Every fifth step has a score of step / 100. Step 30 is at 4 GPU-hours.
"""

import csv
import io

from json_rows import lines as jsonl

STEPS = range(1, 31)
EVALUATED = [step for step in STEPS if step % 5 == 0]
EXPECTED = [(step, step * 60 * 8 / 3600, step / 100) for step in EVALUATED]
"""(step, device-hours, score) of all logs in this module."""


def verl_row(step, inside=False):
    """Return one step. With `inside`, its timer includes validation and checkpoints, as in older versions."""
    row = {
        "training/global_step": step, "critic/score/mean": 0.3, "timing_s/gen": 30.0, "timing_s/ref": 10.0,
        "timing_s/update_actor": 20.0, "perf/total_num_tokens": 4800, "perf/throughput": 10.0,
        "timing_s/step": 60.0, "perf/time_per_step": 60.0,
    }  # fmt: skip
    if step % 5 == 0:
        row |= {"timing_s/testing": 25.0, "timing_s/save_checkpoint": 15.0, "val-core/gsm8k/acc/mean@4": step / 100,
                "val-core/gsm8k/acc/best@4/mean": 0.9, "val-aux/gsm8k/reward/mean@4": 0.2}  # fmt: skip
        if inside:
            row |= {"timing_s/step": 100.0, "perf/time_per_step": 100.0, "perf/throughput": 6.0}
    return row


def console_line(step, row, number=repr):
    return f"step:{step} - " + " - ".join(f"{name}:{number(value)}" for name, value in row.items())


def verl_console(inside=False):
    """Return a log as printed by Ray, with other lines, numpy's number format, colors, and an incomplete last line."""
    lines = ["(TaskRunner pid=71) Training Progress:   0%|          | 0/30 [00:00<?, ?it/s]"]
    for step in STEPS:
        lines.append(f"\x1b[36m(TaskRunner pid=71)\x1b[0m {console_line(step, verl_row(step, inside), numpy_repr)}")
        lines.append("(WorkerDict pid=93) INFO: rollout finished, step: done - ok")
    return "\n".join([*lines, "(TaskRunner pid=71) step:31 - timing_s/gen:30.0 - timing_s/st"])


def numpy_repr(value):
    return f"np.float64({value})" if isinstance(value, float) else repr(value)


def verl_jsonl(inside=False):
    return jsonl({"step": step, "data": verl_row(step, inside)} for step in STEPS)


def prime_rl():
    """Return the orchestrator's metrics.jsonl: steps start at 0, and the evaluation after n updates precedes step n."""
    rows = []
    for step in range(31):
        if step % 5 == 0 and step:
            rows.append({"step": step, "time": 1.7e9, "eval/aime/avg@8": step / 100, "eval/aime/pass@8": 0.9,
                         "eval/aime/time": 20.0, "progress/ckpt_step": step})  # fmt: skip
        took = 80.0 if step % 5 == 0 and step else 60.0
        rows.append({"step": step, "time": 1.7e9, "time/step": took, "time/save_ckpt": 5.0, "progress/tokens": 4800,
                     "progress/total_tokens": 4800 * (step + 1), "progress/ckpt_step": max(step - 1, 0),
                     "progress/total_samples": 64 * (step + 1), "reward/all/mean": 0.4})  # fmt: skip
    return jsonl(rows)


def prime_rl_of_2026():
    """Return two files as in newer versions: a separate process writes the evaluations by subset and version."""
    train = [{"step": step, "time": 1.7e9 + 60 * step, "time/step": 60.0, "progress/tokens": 4800,
              "train/agg/effective/reward/mean": 0.4} for step in range(30)]  # fmt: skip
    evaluation = [{"step": step, "time": 1.7e9 + 60 * step + 400, "eval/aime/effective/avg@8": step / 100,
                   "eval/aime/all/avg@8": step / 200, "eval/aime/effective/pass@8": 0.9,
                   "eval/aime/policy_version": float(step)} for step in EVALUATED]  # fmt: skip
    return jsonl(train), jsonl(evaluation)


def open_instruct():
    """Return a wandb history as CSV: wandb's step is the episode; a checkpoint of 12 s every tenth step."""
    rows = []
    for step in STEPS:
        saving = 12.0 if step % 10 == 0 else 0.0
        rows.append({"_step": 64 * step, "episode": 64 * step, "training_step": step, "time/saving": saving,
                     "time/total": 60.0 + saving, "val/num_step_tokens": 4800,
                     "val/num_total_tokens": 4800 * step})  # fmt: skip
        if step % 5 == 0:
            rows.append(
                {"_step": 64 * step, "eval/scores": step / 10, "eval/pass_at_1": step / 100, "eval/stop_rate": 1.0}
            )
    return as_csv(rows)


def skyrl():
    rows = []
    for step in STEPS:
        row = {"_step": step, "trainer/global_step": step, "timing/step": 60.0, "timing/sync_weights": 2.0,
               "reward/avg_raw_reward": 0.4}  # fmt: skip
        if step % 5 == 0:
            row |= {"timing/step": 90.0, "timing/save_checkpoints": 30.0, "timing/eval": 44.0,
                    "eval/all/avg_score": step / 100, "eval/all/pass_at_4": 0.9}  # fmt: skip
        rows.append(row)
    return jsonl(rows)


def as_csv(rows):
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
