"""prime-rl: metrics.jsonl of the orchestrator, or the same names in wandb.

The step of an evaluation is the version of the weights it sampled from: its `policy_version`, or `progress/ckpt_step`,
or its step.
"""

from __future__ import annotations

import re
from collections import defaultdict

from scalerl.importers.dialect import HELD_OUT, OTHER, SECOND, SECONDS, TRAINING, Dialect, number
from scalerl.importers.rows import Row

TIME = re.compile(r"eval/[^/]+/time|time/eval/[^/]+")
TRAIN = frozenset(("time/step", "progress/tokens", "progress/total_tokens"))
"""Columns that only a training step has."""
VERSION = re.compile(r"eval/[^/]+/policy_version")


def prepare(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Count steps in updates, move evaluations to separate rows, and subtract evaluation time from step time."""
    evaluation_s: dict[float, float] = defaultdict(float)
    for row in rows:
        times = [row[name] for name in row if TIME.fullmatch(name)]
        if times and "step" in row:  # environments are evaluated in parallel, so the longest counts
            evaluation_s[row["step"]] = max(evaluation_s[row["step"]], *times)
    trained = [row["step"] for row in rows if "step" in row and not TRAIN.isdisjoint(row)]
    # steps are counted from 0: the row of step s ends after s + 1 updates
    shift = 1.0 if trained and min(trained) == 0 else 0.0
    prepared, subtracted = [], 0
    for row in rows:
        evaluation = {n: v for n, v in row.items() if n.startswith(("eval/", "time/eval/"))}
        rest = {n: v for n, v in row.items() if n not in evaluation}
        if evaluation:
            versions = [v for n, v in evaluation.items() if VERSION.fullmatch(n)]
            version = versions[0] if versions else number(row, "progress/ckpt_step")
            step = version if version is not None else number(row, "step")
            if step is not None:
                prepared.append({**evaluation, "step": step})
        seconds, step = number(rest, "time/step"), number(rest, "step")
        if step is not None and not TRAIN.isdisjoint(rest):
            rest["step"] = step + shift
            if seconds is not None:
                aside = evaluation_s.get(step, 0.0)
                # an evaluation that is longer than the step ran in parallel with training and took no time from it
                inside = aside if 0 < aside < seconds else 0.0
                subtracted += inside > 0
                rest[SECONDS] = seconds - inside
            prepared.append(rest)
    note = f"evaluation time was subtracted from time/step in {subtracted} rows"
    return prepared, (note,) if subtracted else ()


DIALECT = Dialect(
    name="prime-rl",
    marks=(r"progress/total_(?:samples|problems|rollouts)", r"progress/ckpt_step", r"eval/[^/]+/policy_version",
           r"eval/[^/]+/(?:all/|effective/)?(?:avg|pass)@\d+", r"(?:effective_batch_size|solve_none|solve_all)/all"),
    steps=("step", "_step"),
    evaluations=(
        # `effective` excludes rollouts that failed for reasons outside the model; older versions have only this
        (r"eval/(?P<task>[^/]+)/(?:effective/)?avg@\d+", HELD_OUT),
        (r"eval/(?P<task>[^/]+)/all/avg@\d+", SECOND),
        (r"eval/(?P<task>[^/]+)/(?:effective/)?pass@\d+", OTHER),
        (r"eval/(?P<task>[^/]+)/reward/mean", OTHER),
        (r"(?:train/[^/]+/(?:all|effective)/)?reward/(?:all/)?mean", TRAINING),
    ),
    about="time/step of the orchestrator without evaluation and checkpoints",
    seconds=(SECONDS,),
    clocks=("time", "_timestamp"),
    tokens=("progress/total_tokens",),
    step_tokens=("progress/tokens",),
    prepare=prepare,
)  # fmt: skip
