"""What study.json says about a study, from its plan (core/run_files.py)."""

from __future__ import annotations

from scalerl.core.run_files import ArmInfo, Settings, StudyInfo
from scalerl.training.config import RunConfig
from scalerl.training.config.data import generated_tasks
from scalerl.training.loop.run_info import data_notes, default_axis, settings
from scalerl.training.study.plan import Plan

OWN_FIELDS = ("seed", "recipe.name")
"""Fields that differ between all runs, and say nothing about their arm."""


def study_info(plan: Plan) -> StudyInfo:
    """Return the content of study.json."""
    base, shared = plan.base, _fields(plan.base)
    arms, tasks = {}, dict[str, tuple[float, float]]()
    for arm in plan.arms:
        config = plan.config(arm, plan.seeds[0])
        fields = _fields(config)
        differing = {name: fields.get(name) for name in {**shared, **fields} if shared.get(name) != fields.get(name)}
        arms[arm.name] = ArmInfo(
            about=arm.about,
            settings=differing,
            seeds=plan.seeds,
            steps=config.steps,
            held_out=plan.is_held_out(arm.name),
        )
        tasks |= dict.fromkeys(config.tasks, (0.0, 1.0))
    return StudyInfo(
        name=plan.name,
        about=plan.about,
        reference=plan.reference,
        axis=default_axis(base),
        # a file of prompts has tasks that its rows determine
        task=base.main_tasks[0] if generated_tasks(base.data) or base.main_tasks != base.tasks else None,
        tasks=tasks,
        vary=plan.vary,
        notes=data_notes(base),
        settings=shared,
        arms=arms,
    )


def _fields(config: RunConfig) -> Settings:
    return {name: value for name, value in settings(config).items() if name not in OWN_FIELDS}
