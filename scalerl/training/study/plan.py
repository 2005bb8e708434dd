"""A plan of a study: a base configuration, arms that each change a few of its fields, and seeds.

Arms of the same seed are paired: they have the same warm start, prompts, order of prompts and held-out set. All arms
sample the same number of completions with the same number of evaluations, so an arm with larger batches takes fewer
steps.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from scalerl.core.errors import ConfigError, nearest, short
from scalerl.core.run_files import ARM_NAME, RunKey
from scalerl.reading.curves.sampling import MIN_POINTS
from scalerl.reading.curves.settings import check_settings, setting_of
from scalerl.training.config import PRESETS, RunConfig, by_name, merge, plain_values, read_config, to_toml
from scalerl.training.config.base import Part, Seed, build, replace
from scalerl.training.config.overrides import read_toml
from scalerl.training.config.recipe import Recipe

Changes = dict[str, Any]
"""Fields of a RunConfig as nested plain values, such as {"recipe": {"loss": {"kind": "gspo"}}}."""


class Arm(Part):
    """One arm of a study: changes to the base configuration.

    Example: Arm(name="gspo", about="GSPO's loss", changes={"recipe": {"loss": {"kind": "gspo"}}}).
    """

    name: str
    """Letters, digits, dots, dashes and underscores, at most 40; also the name of its directory."""
    about: str = ""
    """Description of the changes in a few words."""
    changes: Changes = Field(default_factory=dict)
    """Fields that override those of the plan's base."""

    @field_validator("name")
    @classmethod
    def _check(cls, name: str) -> str:
        if not ARM_NAME.fullmatch(name):
            raise ValueError(f"name of an arm: got {name!r}; allowed: letters, digits, '.', '-' and '_', at most 40")
        return name


class Plan(Part):
    """A set of runs to compare."""

    name: str
    """Free text."""
    about: str = ""
    """The question that the study answers."""
    reference: str
    """Name of the arm with which all others are compared."""
    seeds: tuple[Seed, ...] = (0, 1, 2)
    """Seeds of every arm; the scatter between seeds can be estimated from three or more."""
    base: RunConfig
    """Configuration that the arms share. `base.steps` is the budget: the steps of an arm with the base's batch."""
    arms: tuple[Arm, ...]
    """At least the reference and one other arm."""
    vary: tuple[str, ...] = ()
    """Dotted fields, such as model.width, whose values are the settings of an arm; empty: the arms are no grid."""
    held_out: tuple[str, ...] = ()
    """Patterns of arms, such as w128-*, that are predicted from the others before they are run."""

    def arm(self, name: str) -> Arm:
        """Return an arm by name."""
        return next(arm for arm in self.arms if arm.name == name)

    def setting(self, arm: Arm) -> dict[str, float | str]:
        """Return the settings of an arm: the values of the fields in `vary`."""
        return setting_of(by_name(self.config(arm, self.seeds[0])), self.vary, f"arm {arm.name}")

    def is_held_out(self, name: str) -> bool:
        """Return whether an arm is predicted before it is run."""
        return any(fnmatch(name, pattern) for pattern in self.held_out)

    def runs(self) -> list[RunKey]:
        """Return all runs, the first seed of every arm first, so that all arms can be compared early."""
        return [RunKey(arm.name, seed) for seed in self.seeds for arm in self.arms]

    def config(self, arm: Arm, seed: int) -> RunConfig:
        """Return the configuration of one run: an arm's changes, at the base's number of completions and evaluations.

        Raises:
            ConfigError: The arm's changes do not give a valid configuration.
        """
        base = self.base
        values = merge(merge(plain_values(base), arm.changes), {"seed": seed})
        changed = build(RunConfig, values, f"arm {arm.name}")
        ratio = base.recipe.completions_per_step / changed.recipe.completions_per_step
        config = replace(changed, recipe=replace(changed.recipe, name=arm.name))
        if "steps" not in arm.changes:
            config = replace(config, steps=max(1, round(base.steps * ratio)))
        if "every" not in arm.changes.get("evaluation", {}):
            interval = max(1, round(base.evaluation.every * ratio))
            config = replace(config, evaluation=replace(config.evaluation, every=interval))
        return config

    def run_config(self, key: RunKey) -> RunConfig:
        """Return the configuration of one of `runs`."""
        return self.config(self.arm(key.arm), key.seed)


def checked_plan(plan: Plan) -> Plan:
    """Return the plan if it can be run and compared.

    Raises:
        ConfigError: There are fewer than two arms, a name or a seed is given twice, the reference is unknown, two arms
            have equal configurations, or there are too few evaluations for a fit.
        CurveError: The arms that are not held out do not determine a law over the settings.
    """
    names = [arm.name for arm in plan.arms]
    if not 2 <= len(names) <= MOST_ARMS:
        raise ConfigError(f"{plan.name}: a study needs 2 to {MOST_ARMS} arms; got {len(names)}")
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(f"{plan.name}: arm {name!r} is given {count} times; names must differ")
    if plan.reference not in names:
        raise ConfigError(
            f"reference: got {plan.reference!r}{nearest(plan.reference, names)}; allowed: {', '.join(names)}"
        )
    if len(set(plan.seeds)) < len(plan.seeds) or not 1 <= len(plan.seeds) <= MOST_SEEDS:
        raise ConfigError(f"seeds: got {short(list(plan.seeds))}; allowed: 1 to {MOST_SEEDS} different seeds")
    configs = {arm.name: plan.config(arm, plan.seeds[0]) for arm in plan.arms}
    by_values: dict[str, str] = {}
    for name, config in configs.items():
        other = by_values.setdefault(unnamed(config).model_dump_json(), name)
        if other != name:
            raise ConfigError(
                f"arms {other!r} and {name!r} are the same run: their configurations are equal. Change or remove one"
            )
    for name, config in configs.items():
        evaluations = 1 + -(-config.steps // config.evaluation.every)
        if evaluations < MIN_POINTS:
            raise ConfigError(
                f"arm {name!r}: {config.steps} steps with an evaluation every {config.evaluation.every} give "
                f"{evaluations} evaluations; a fit needs {MIN_POINTS}. Raise the budget or evaluate more often"
            )
    check_law(plan, names)
    return plan


def check_law(plan: Plan, names: Sequence[str]) -> None:
    """Check that the arms that are not held out determine a law over the settings."""
    for pattern in plan.held_out:
        if not plan.vary or not any(fnmatch(name, pattern) for name in names):
            needs = (
                f"{pattern!r} matches no arm{nearest(pattern, names)}" if plan.vary else 'vary = ["FIELD"] is missing'
            )
            raise ConfigError(f"held_out: {needs}; held-out arms are predicted by a law over the fields in vary")
    if plan.vary:
        check_settings([plan.setting(arm) for arm in plan.arms if not plan.is_held_out(arm.name)])


MOST_SEEDS, MOST_ARMS = 1000, 1000
"""Largest numbers of seeds and arms; every pair of an arm and a seed is a run."""


def unnamed(config: RunConfig) -> RunConfig:
    """Return a configuration without the name of its arm, which does not affect the run."""
    return replace(config, recipe=replace(config.recipe, name="any"))


def select(plan: Plan, patterns: Sequence[str]) -> Plan:
    """Return the plan with only the arms whose names match a pattern (such as `loss-*`), and the reference.

    Raises:
        ConfigError: A pattern matches no arm.
    """
    names = [arm.name for arm in plan.arms]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            raise ConfigError(f"--only: {pattern!r} matches no arm{nearest(pattern, names)}; arms: {', '.join(names)}")
    arms = [a for a in plan.arms if a.name == plan.reference or any(fnmatch(a.name, p) for p in patterns)]
    held_out = tuple(p for p in plan.held_out if any(fnmatch(arm.name, p) for arm in arms))
    return replace(plan, arms=tuple(arms), held_out=held_out)


def recipe_changes(recipe: Recipe, base: Recipe) -> Changes:
    """Return the changes that turn the base into this recipe: only the fields that differ."""
    changes = _difference(recipe.model_dump(mode="json"), base.model_dump(mode="json"))
    changes.pop("name", None)
    return {"recipe": changes} if changes else {}


def _difference(target: dict[str, Any], base_values: dict[str, Any]) -> dict[str, Any]:
    """Return the changes that turn the second mapping into the first; a part of another kind is given completely."""
    changes: dict[str, Any] = {}
    for key, value in target.items():
        old = base_values[key]
        if value == old:
            continue
        if isinstance(value, dict) and isinstance(old, dict) and value.get("kind") == old.get("kind"):
            value = _difference(value, old)
        changes[key] = "none" if value is None else value  # TOML has no null; a configuration reads "none" as None
    return changes


def with_rates(plan: Plan, rates: Mapping[str, float]) -> Plan:
    """Return the plan with the learning rate of its loss in each arm that does not set a learning rate.

    `rates` are learning rates by kind of loss, from a sweep.
    """
    arms = []
    for arm in plan.arms:
        rate = rates.get(plan.config(arm, 0).recipe.loss.kind)
        named = "learning_rate" in arm.changes.get("recipe", {}).get("optimizer", {})
        tuned = {} if rate is None or named else {"recipe": {"optimizer": {"learning_rate": rate}}}
        arms.append(replace(arm, changes=merge(arm.changes, tuned)))
    return replace(plan, arms=tuple(arms))


# ------------------------------------------------------------------------------------------------------------ as TOML


def read_plan(file: Path) -> Plan:
    """Read a plan from a TOML file.

        name = "caps"
        about = "Does CISPO's cap matter?"
        base = "quick"                     # a preset, the path of a configuration, or a table [base]
        reference = "five"
        seeds = [0, 1, 2]
        [changes]                          # applied to the base for every arm
        steps = 200
        [arms.five]
        [arms.eight]
        about = "a wider cap"
        recipe.loss.max_ratio = 8

    Raises:
        ConfigError: The file is unreadable, a key is unknown, or an arm does not give a valid configuration.
    """
    values = read_toml(file)
    arms, base, changes = (
        values.pop(key, default) for key, default in (("arms", 0), ("base", "quick"), ("changes", {}))
    )
    if not isinstance(arms, dict) or not all(isinstance(table, dict) for table in arms.values()):
        raise ConfigError(f"{file}: arms: got {short(arms)}; a study needs a table [arms.NAME] for each arm")
    if not isinstance(changes, dict):
        raise ConfigError(f"{file}: changes: got {short(changes)}; allowed: a table [changes] of fields")
    listed = [{"name": name, "about": table.pop("about", ""), "changes": table} for name, table in arms.items()]
    head = {"name": file.stem, "reference": next(iter(arms), ""), **values}
    config = build(RunConfig, merge(_base(base, file), changes), str(file))
    return checked_plan(build(Plan, {**head, "base": config, "arms": listed}, str(file)))


def plan_toml(plan: Plan) -> str:
    """Return the plan as TOML that `read_plan` reads back as an equal value."""
    import tomli_w

    arms = {arm.name: ({"about": arm.about} if arm.about else {}) | arm.changes for arm in plan.arms}
    head = {"name": plan.name, "about": plan.about, "reference": plan.reference, "seeds": list(plan.seeds)}
    head |= {name: list(values) for name in ("vary", "held_out") if (values := getattr(plan, name))}
    return tomli_w.dumps({**head, "arms": arms, "base": tomllib.loads(to_toml(plan.base))})


def _base(base: Any, file: Path) -> dict[str, Any]:
    if isinstance(base, dict):
        return merge(plain_values(PRESETS["lab"]), base)
    if isinstance(base, str) and base in PRESETS:
        return plain_values(PRESETS[base])
    if isinstance(base, str) and (file.parent / base).exists():
        return plain_values(read_config(file.parent / base, []))
    raise ConfigError(
        f"{file}: base: got {short(base)}; allowed: {', '.join(PRESETS)}, the path of a TOML file, or a table"
    )
