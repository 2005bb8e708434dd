"""What run.json says about a run, from its configuration (core/run_files.py)."""

from __future__ import annotations

from scalerl.core.run_files import RunInfo, Settings
from scalerl.training.config import HuggingFaceModel, RunConfig, by_name
from scalerl.training.config.data import generated_tasks
from scalerl.training.loop.catalog import METRICS

TASK_RULES = {
    "arithmetic": "The arithmetic is computed from left to right, modulo 10.",
    "programs": "A program is computed from left to right, modulo 10.",
}
"""What a reader must know about the lab's tasks, by kind."""


def run_info(config: RunConfig, devices: float = 1.0) -> RunInfo:
    """Return the content of run.json.

    Args:
        config: Configuration of the run.
        devices: Devices whose hours count.
    """
    suites = tuple(task for task in config.tasks if task not in config.main_tasks)
    return RunInfo(
        title=config.recipe.name,
        about=about_run(config),
        axis=default_axis(config),
        tasks={task: (0.0, 1.0) for task in config.main_tasks},
        suites=suites,
        notes=data_notes(config),
        seed=config.seed,
        devices=devices,
        min_gain=config.min_gain,
        price=config.price,
        steps=config.steps,
        settings=settings(config),
        metrics=METRICS,
    )


def settings(config: RunConfig) -> Settings:
    """Return every field that has a value by its dotted name."""
    return {name: value for name, value in by_name(config).items() if value is not None}


def default_axis(config: RunConfig) -> str:
    """Return the default compute axis of a fit: device-hours on GPUs, counted FLOPs on CPU."""
    return "device_hours" if config.hardware.device == "cuda" else "flops"


def data_notes(config: RunConfig) -> tuple[str, ...]:
    """Return notes about the data and about changes during the run."""
    rates = [f"{rate.learning_rate:g} after step {rate.after_step}" for rate in config.recipe.optimizer.later_rates]
    of_rates = f"the learning rate was set to {', then '.join(rates)}" if rates else ""
    return tuple(filter(None, (_noise_note(config), of_rates)))


def _noise_note(config: RunConfig) -> str:
    noise = {task.curve: f"{task.label_noise:.0%}" for task in generated_tasks(config.data) if task.label_noise}
    if not noise:
        return ""
    alike = len(noise) == len(config.main_tasks) and len(set(noise.values())) == 1
    amount = next(iter(noise.values())) if alike else ", ".join(f"{share} ({kind})" for kind, share in noise.items())
    return f"{amount} of the reference answers are wrong on purpose, which caps the pass rate"


def about_run(config: RunConfig) -> str:
    """Return what a run does, in a few sentences for readers who do not know it."""
    recipe, notes = config.recipe, "; ".join(data_notes(config))
    model = config.model.path if isinstance(config.model, HuggingFaceModel) else "a tiny Qwen3"
    sentences = [
        f"Reinforcement learning of {model} on {', '.join(config.main_tasks)}.",
        f"Each step trains on the answers to {recipe.prompts_per_step} prompts, {recipe.generations_per_prompt} for "
        "each, and rewards the correct ones.",
        f"Every {config.evaluation.every} steps the model answers held-out prompts, which it is not trained on.",
        *dict.fromkeys(TASK_RULES[task.kind] for task in config.data if task.kind in TASK_RULES),
    ]
    return " ".join([*sentences, *([f"Data: {notes}."] if notes else [])])
