"""What is known about a trainer: its settings nearest to ScaleRL, what it lacks, and how its settings are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A setting of a trainer, with the value that comes nearest to ScaleRL.

    Example: Setting("loss_type", "cispo", "eq. 4: truncated importance-sampling REINFORCE")
    """

    name: str
    """Name in the trainer's configuration; the levels of a nested one are joined with dots."""
    value: Any
    comment: str
    """Why this value; one line."""


class Theirs(NamedTuple):
    """What a configuration has for a component of the recipe.

    Example: Theirs("DAPO's clip, 0.2 and 0.28", "clip", same=False)
    """

    words: str
    """For the table."""
    kind: str = ""
    """What the paper may have measured: a key of `FACTS` in `paper.py`."""
    same: bool | None = False
    """Whether it equals ScaleRL's; None if the file does not say it."""


class Values(Mapping[str, Any]):
    """The settings of a file, and the trainer's defaults for the others."""

    def __init__(self, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        """Join settings and defaults, both by dotted names."""
        self.settings, self.defaults = dict(settings), dict(defaults)
        self.used: list[str] = []
        """Names in the order in which they were read."""

    def __getitem__(self, name: str) -> Any:
        self.used.append(name)
        return self.settings[name] if name in self.settings else self.defaults[name]

    def __iter__(self) -> Any:
        return iter({**self.defaults, **self.settings})

    def __len__(self) -> int:
        return len({**self.defaults, **self.settings})

    def number(self, name: str) -> float | None:
        """Return a number, also one that is written as text; None if it is none or missing."""
        value = self.get(name)
        try:
            return None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None

    def flag(self, name: str) -> bool:
        """Return whether a setting is on; text such as "False", "null" and "0" is off."""
        value = self.get(name)
        return value.strip().lower() not in OFF_WORDS if isinstance(value, str) else bool(value)

    def word(self, name: str) -> str:
        """Return a setting as lower-case text; empty if it is missing."""
        value = self.get(name)
        return "" if value is None else str(value).strip().lower()


OFF_WORDS = ("", "0", "false", "no", "none", "null", "off")
"""Text that stands for off in YAML, in Hydra's overrides and on command lines."""

Part = Callable[[Values], Theirs]


@dataclass(frozen=True)
class Trainer:
    """A trainer, as far as the recipe needs it. Names are those of one version of its source.

    Example: Trainer(name="trl", title="TRL", package="trl", checked="1.16.0", form="yaml", ...)
    """

    name: str
    """What `scalerl recipes --for` takes."""
    title: str
    package: str
    """Name of its Python package, whose installed version is compared with `checked`."""
    checked: str
    """Version of the source in which every name was found."""
    form: str
    """Form of its configuration: yaml, toml, or shell (an array of arguments in a script)."""
    start: str
    """Command that trains with the printed file, called `scalerl.FORM`."""
    settings: tuple[Setting, ...]
    """Settings that come nearest to ScaleRL, in the order of the file."""
    lacks: Mapping[str, str]
    """Components of the recipe without a setting, with what happens instead."""
    defaults: Mapping[str, Any]
    """Defaults of the settings that `parts` reads."""
    parts: Mapping[str, Part]
    """How each component is read from a configuration; components that are missing here are in `lacks`."""
    required: tuple[str, ...] = ()
    """Beginnings of names by which a file of this trainer is recognized, where names of settings are shared."""
    notes: tuple[str, ...] = ()
    """Sentences for the head of the printed file."""
    preamble: tuple[str, ...] = ()
    """First lines of the printed file: what it is based on."""


def number(value: float | None) -> str:
    """Return a number as people write it; a question mark for None."""
    return "?" if value is None else f"{value:.10g}".replace("e-0", "e-")


def clipped(low: float | None, high: float | None) -> Theirs:
    """Return the part of a clipped surrogate: GRPO's if it is symmetric, DAPO's otherwise."""
    name = "GRPO's clip" if low == high else "DAPO's clip"
    return Theirs(f"{name}, {number(low)} and {number(high)}", "clip")


def cispo(cap: float | None, floor: float = 0.0) -> Theirs:
    """Return the part of CISPO with a cap on the ratio, and a lower limit of the ratio."""
    words = f"CISPO, ratio capped at {number(cap)}" + (f" and not below {number(floor)}" if floor > 0 else "")
    if floor > 0:
        return Theirs(words, "floor")
    return Theirs(words, "" if cap in MEASURED_CAPS else "cap", same=cap in MEASURED_CAPS)


MEASURED_CAPS = (4.0, 5.0, 8.0)
"""Caps of CISPO's ratio between which the paper finds no difference."""


def penalty(values: Values, names: tuple[str, ...]) -> Theirs:
    """Return the part of a KL penalty whose coefficients have these names."""
    coefficient = max((values.number(name) or 0.0 for name in names), default=0.0)
    return Theirs("none", same=True) if not coefficient else Theirs(f"coefficient {number(coefficient)}", "kl")


def completions(prompts: float | None, generations: float | None) -> Theirs:
    """Return the part of the batch: completions per update."""
    if prompts is None or generations is None:
        return Theirs("not in the file", same=None)
    total = int(prompts * generations)
    return Theirs(f"{total:,}", f"{total}", same=total == 768)


def group(size: float | None) -> Theirs:
    """Return the part of the generations per prompt."""
    return (
        Theirs("not in the file", same=None)
        if size is None
        else Theirs(number(size), number(size), same=size == GENERATIONS)
    )


GENERATIONS = 16


def tokens(limit: float | None, room: int = 14336) -> Theirs:
    """Return the part of the longest completion; ScaleRL's is 12,288 tokens of thinking and 2,048 of the answer."""
    if limit is None:
        return Theirs("not in the file", same=None)
    return Theirs(f"{int(limit):,}", "32k" if 30_000 <= limit <= 34_816 else "other", same=limit == room)


def optimizer(values: Values, rate: str, eps: str | None, warmup: str | None) -> Theirs:
    """Return the part of the optimizer; a name that is None has no setting, and torch's default applies."""
    epsilon = 1e-8 if eps is None else values.number(eps)
    steps = None if warmup is None else values.number(warmup)
    same = values.number(rate) == 5e-7 and epsilon == 1e-15 and steps == 100
    warm = "" if steps is None else f", {number(steps)} steps of warm-up"
    return Theirs(f"lr {number(values.number(rate))}, eps {number(epsilon)}{warm}", "optimizer", same=same)


def fixed(words: str, kind: str, *, same: bool | None = False) -> Part:
    """Return a part that no setting changes."""
    return lambda values: Theirs(words, kind, same)


REPLACED = Theirs("replaced: dynamic sampling", "refill")
COUNTED = Theirs("counted in the average", "keep")
DROPPED = Theirs("dropped, not replaced", same=True)
"""What becomes of prompts whose rollouts all have the same reward."""

NO_RESAMPLING = fixed("no setting: solved prompts are drawn again", "off")
NO_INTERRUPTION = fixed("no setting: only the hard limit", "none")
NO_HEAD = fixed("no setting", "off")
