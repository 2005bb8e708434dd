"""Makes run directories as training writes them, with rows of given numbers."""

import json
import math

from scalerl.core.status import Heartbeat
from scalerl.training.config import PRESETS, to_toml
from scalerl.training.config.base import replace
from scalerl.training.loop.run_info import run_info

LAB = PRESETS["lab"]
METRICS = {
    "pass_rate": 0.4, "answer_in_prompt": 0.1,
    "reward": 0.4, "prompts": 16, "kept_prompts": 11, "truncation_rate": 0.02,
    "interruption_rate": 0.1, "completion_tokens_mean": 48.0, "completion_tokens_max": 80, "staleness_mean": 3.2,
    "staleness_max": 7.0, "stale_share": 0.0, "loss": -0.01, "trained_tokens": 9000, "log_ratio_mean": 0.001,
    "log_ratio_min": -0.4, "log_ratio_max": 0.5, "capped_share": 0.001,
    "log_ratio_fresh": 0.001, "log_ratio_stale": 0.01, "effective_samples": 0.99, "corrected_share": 0.0, "kl": 0.002,
    "entropy": 0.31, "router_disagreement": None,
    "grad_norm": 0.2, "learning_rate": 5e-4, "occupancy": 0.9, "generator_tokens_per_s": 5000.0, "generator_idle": 0.05,
    "trainer_tokens_per_s": 8000.0, "trainer_idle": 0.12, "scoring_wait_s": 0.0, "swap_ms": 3.0, "step_s": 1.5,
    "epoch": 1, "retired_prompts": 0, "dropped_groups": 0, "verifier_timeouts": 0, "reward_failures": 0,
    "replay_difference": 1e-6, "engine_restarts": 0, "resampled": 0,
    "answer_box": None, "answer_tag": None, "answer_hashes": None, "answer_phrase": None, "answer_none": None,
    "answer_unread": None,
    "turns": None, "tool_calls": None, "observed_tokens": None, "reply_wait_s": None, "parked": None,
}  # fmt: skip
"""A step of a healthy run."""

ABSENT = {name for name, value in METRICS.items() if value is None}
"""Metrics of mixtures and of environments."""


def write_run(path, rows=0, points=0, steps=400, **changes):
    """Write a run directory of the lab with given rows and evaluations; `changes` are fields of its configuration."""
    path.mkdir(parents=True)
    config = replace(LAB, steps=steps, **changes)
    (path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    (path / "run.json").write_text(run_info(config).to_json(), encoding="utf-8")
    add_steps(path, range(1, rows + 1))
    add_points(path, range(points))
    with Heartbeat(path, phase="training") as beating:  # no process runs; the state follows from the files' ages
        beating.ended("finished" if rows >= steps else "running", "")
    return path


def add_steps(path, steps, **changes):
    with (path / "metrics.jsonl").open("a") as file:
        for step in steps:
            used = {"device_hours": 5e-4 * step, "flops": 2e12 * step, "tokens": 50_000 * step}
            moving = {"loss": 0.01 * math.sin(step), "entropy": 0.3 + 0.2 / (1 + step / 50)}
            file.write(json.dumps({"step": step, **METRICS, **moving, **used, **changes}) + "\n")


def add_event(path, step, kind, key, text=""):
    with (path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "kind": kind, "key": key, "text": text}) + "\n")


def point(number, task="arithmetic", **changes):
    """Return a point of a curve with ceiling 0.61 and midpoint at step 80; one evaluation every 10 steps."""
    step = 10 * number
    rate = 0.2 + 0.41 / (1 + (80 / step) ** 1.9) if step else 0.2
    return {
        "step": step, "device_hours": 5e-4 * step, "flops": 2e12 * step, "tokens": 50_000 * step, "task": task,
        "pass_rate": rate + 0.004 * math.sin(7.0 * number), "stderr": 0.006, "prompts": 400, "samples_per_prompt": 4,
        "truncated": 0.01, "mean_tokens": 48.0, "eval_s": 1.0, **changes,
    }  # fmt: skip


def add_points(path, numbers, **changes):
    with (path / "points.jsonl").open("a") as file:
        file.writelines(json.dumps(point(number, **changes)) + "\n" for number in numbers)


HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
"""A text that runs a script if it is interpreted as HTML."""


def rollout(step, sample, prompt="7+4=", **changes):
    """Return a rollout of a group: even samples passed; the third token was inserted."""
    passed = sample % 2 == 0
    detail = {
        "text": ["7+4=", "1", "</think>", "1"], "staleness": [3, 2, None, 2], "log_ratio": [0.01, -0.4, None, 0.9],
        "left_out": 0,
    }  # fmt: skip
    return {
        "step": step, "task": "arithmetic", "prompt_id": prompt, "sample": sample, "question": prompt,
        "prompt": prompt, "completion": "7+4=1⟦</think>⟧1", "answer": "1", "reward": 1.0 if passed else -1.0,
        "passed": passed, "reason": "" if passed else f"got '{sample}', expected '1'", "tokens": 4 + sample,
        "truncated": sample == 3, "interrupted": True, "ended": "tokens" if sample == 3 else "stop",
        "versions": [step - 3, step - 2], "staleness": 3,
        "log_ratio_min": -0.4, "log_ratio_max": 0.9, "token_detail": detail if sample < 2 else None, **changes,
    }  # fmt: skip


def add_rollouts(path, rows, name="rollouts/samples.jsonl"):
    (path / name).parent.mkdir(exist_ok=True)
    with (path / name).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
