"""Writes the settings nearest to ScaleRL as a configuration of another trainer, with a comment at each line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from scalerl.reading.trainers.data import COMPONENTS, Trainer, TrainerSetting


def configuration(trainer: Trainer) -> str:
    """Return the text of the file: what it is, what the trainer lacks, and its settings."""
    titles = {component.key: component.title for component in COMPONENTS}
    head = [
        f"The settings of {trainer.title} that come nearest to ScaleRL (arXiv 2510.13786).",
        f"Names as in {trainer.title} {trainer.checked}.",
        f"Save it as scalerl.{SUFFIXES[trainer.form]}, then: {trainer.start}",
        *trainer.notes,
        "Components of ScaleRL without a setting here:",
        *(f"- {titles[key]}: {words}" for key, words in trainer.lacks.items()),
    ]
    body = {"yaml": _yaml, "toml": _toml, "shell": _shell}[trainer.form](trainer.nearest)
    return "\n".join([*(f"# {line}" for line in head), "", *trainer.preamble, *body]) + "\n"


SUFFIXES = {"yaml": "yaml", "toml": "toml", "shell": "sh"}


def _yaml(settings: list[TrainerSetting]) -> Iterator[str]:
    """Yield lines of YAML; settings of one table follow each other."""
    opened: list[str] = []
    for name, value, _, comment in settings:
        *tables, key = name.split(".")
        for at, table in enumerate(tables):
            if opened[: at + 1] != tables[: at + 1]:
                yield f"{'  ' * at}{table}:"
        opened = tables
        yield f"{'  ' * len(tables)}{key}: {_scalar(value)}  # {comment}"


def _scalar(value: Any) -> str:
    """Return a value in YAML; text and numbers such as 5e-7 are written so that every reader takes them as such."""
    if isinstance(value, float):
        mantissa, e, exponent = f"{value:.10g}".partition("e")
        return (mantissa if "." in mantissa else f"{mantissa}.0") + (f"e{int(exponent)}" if e else "")
    return value if isinstance(value, str) and value.isidentifier() else json.dumps(value)


def _toml(settings: list[TrainerSetting]) -> Iterator[str]:
    opened = ""
    for name, value, _, comment in settings:
        table, _, key = name.rpartition(".")
        if table != opened:
            yield from ("", f"[{table}]") if opened else (f"[{table}]",)
            opened = table
        yield f"{key} = {_scalar(value) if isinstance(value, float) else json.dumps(value)}  # {comment}"


def _shell(settings: list[TrainerSetting]) -> Iterator[str]:
    """Yield an array of arguments; a flag has the value True."""
    yield "SCALERL_ARGS=("
    for name, value, _, comment in settings:
        if name.startswith("--"):
            word = name if value is True else f"{name} {_argument(value)}"
        else:
            word = f"{name}={_argument(value)}"
        yield f"  {word}  # {comment}"
    yield ")"


def _argument(value: Any) -> str:
    if isinstance(value, list):
        return "'" + json.dumps(value).replace(" ", "") + "'"
    return value if isinstance(value, str) else _scalar(value)
