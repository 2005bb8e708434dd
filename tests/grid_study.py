"""Studies over settings whose runs follow a known law: logit A and ln C_mid are linear in the logs of the settings."""

import json

import numpy as np

from scalerl.reading.curves.pool import levels
from scalerl.training.config import to_toml
from scalerl.training.loop.run_info import run_info
from scalerl.training.study.directory import StudyDirectory

FLOPS = 1e9
"""FLOPs of a completion, per unit of width."""


def theta(setting):
    """Return (logit A, ln C_mid, ln B, R0); doubling the width raises logit A by 0.2, the batch by 0.05."""
    width, batch = np.log2(setting["model.width"] / 96), np.log2(setting["recipe.prompts_per_step"] / 16)
    return np.array([0.2 + 0.2 * width + 0.05 * batch, np.log(5e14) + 0.8 * width + 0.2 * batch, 0.6, 0.2])


def compute_at(config, step):
    return FLOPS * config.model.width * config.recipe.completions_per_step * step


def level_of(study, key, compute):
    return float(levels(theta(study.plan.setting(study.plan.arm(key.arm))), compute, (0, 1)))


def train(study: StudyDirectory, keys, share=1.0, noise=0.003):
    """Write the runs of a study up to a share of their steps, without training."""
    for number, key in enumerate(keys):
        config = study.plan.run_config(key)
        steps = np.arange(0, round(config.steps * share) + 1, config.evaluation.every)
        rng = np.random.default_rng([number, key.seed])
        rates = [level_of(study, key, max(compute_at(config, step), 1.0)) for step in steps]
        run = study.run(key)
        run.mkdir(parents=True, exist_ok=True)
        (run / "config.toml").write_text(to_toml(config))
        (run / "run.json").write_text(run_info(config).to_json())
        rows = [
            {"step": int(step), "device_hours": 1e-4 * step, "flops": compute_at(config, float(step)),
             "tokens": 100 * int(step), "task": "arithmetic", "pass_rate": rate + noise * rng.standard_normal(),
             "stderr": 0.004, "prompts": 1000, "samples_per_prompt": 2}
            for step, rate in zip(steps, rates, strict=True)
        ]  # fmt: skip
        (run / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
