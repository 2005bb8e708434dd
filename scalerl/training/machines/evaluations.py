"""What the evaluations of a planned run will tell about its curve, and how often to evaluate to know its ceiling.

The run is expected to climb like the paper's (`scaling.designs`); `scalerl design` takes past runs or other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scalerl.reading.curves.designs import (
    MOST_EVALUATIONS,
    Evaluations,
    Prospect,
    enough_evaluations,
    prospect_line,
    usual_prospect,
)
from scalerl.reading.curves.sampling import MIN_POINTS
from scalerl.training.config.run import RunConfig

MOST_SHARE = 0.25
"""Largest share of the completions of training that the chosen evaluations may take on top."""


def count_of(steps: int, every: int) -> int:
    """Return the number of evaluations of a run, the one before training included."""
    return 1 + steps // every


def sizes_of_tasks(config: RunConfig, held_out: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the held-out prompts of each task, and the samples of each prompt."""
    return {
        task.curve: (held_out.get(task.curve, config.evaluation.held_out_of(task)), config.evaluation.samples_of(task))
        for task in config.data
    }


def evaluations_of(config: RunConfig, held_out: Mapping[str, int] | None = None) -> Evaluations:
    """Return the evaluations of the task with the fewest answers, of those with a forecast."""
    sizes = sizes_of_tasks(config, held_out or {})
    judged = [sizes[name] for name in config.main_tasks] or list(sizes.values())
    prompts, samples = min(judged, key=lambda size: size[0] * size[1])
    return Evaluations(min(count_of(config.steps, config.evaluation.every), MOST_EVALUATIONS), max(1, prompts), samples)


def share_of(config: RunConfig, count: int, held_out: Mapping[str, int] | None = None) -> float:
    """Return the completions of this many evaluations of all tasks, as a share of those of training."""
    return count * config.evaluated_sequences(held_out) / (config.steps * config.recipe.completions_per_step)


def curve_line(config: RunConfig, held_out: Mapping[str, int] | None = None) -> str:
    """Return what the curve of a planned run will tell, as one line.

    Args:
        config: Configuration of the run.
        held_out: Held-out prompts of tasks whose prompts are known; else as many as the configuration allows.
    """
    if (count := count_of(config.steps, config.evaluation.every)) < MIN_POINTS:
        number = f"{count} evaluation{'s are' if count > 1 else ' is'}"
        return f"curve: {number} too few for a forecast, which needs {MIN_POINTS}; lower evaluation.every"
    return prospect_line(evaluations_of(config, held_out), share_of(config, 1, held_out))


def curve_prospect(config: RunConfig, held_out: Mapping[str, int] | None = None) -> Prospect | None:
    """Return what the curve of a planned run will tell; None with too few evaluations. Arguments: see `curve_line`."""
    if (count := count_of(config.steps, config.evaluation.every)) < MIN_POINTS:
        return None
    return replace(usual_prospect(evaluations_of(config, held_out)), share=share_of(config, count, held_out))


def chosen_interval(config: RunConfig, held_out: Mapping[str, int]) -> int:
    """Return the largest interval of evaluations that identifies the ceiling; the present one if it costs too much."""
    every = config.evaluation.every
    design = (
        enough_evaluations(evaluations_of(config, held_out))
        if count_of(config.steps, config.evaluation.every) >= MIN_POINTS
        else None
    )
    count = count_of(config.steps, config.evaluation.every) if design is None else design.evaluations.count
    if (
        count - 1 > config.steps
        or count == count_of(config.steps, config.evaluation.every)
        or share_of(config, count, held_out) > MOST_SHARE
    ):
        return every
    return config.steps // (count - 1)
