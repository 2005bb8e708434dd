"""Conversion of records to plain nested values and back, and of nested values to dotted names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from scalerl.core.types import Prompt

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Convert a record to nested dicts and lists; arrays, numbers, strings and prompts are unchanged.

    A prompt has the columns of its row, which may be any objects. A checkpoint refers to it
    (training/learner/checkpoint.py).
    """
    if isinstance(value, Prompt):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(cls: type[T], values: Any) -> T:
    """Build a record from the output of `to_plain`. A field that is missing, as in an older file, gets its default."""
    hints = _hints(cls)  # type: ignore[arg-type]
    return cls(**{name: _revive(hint, values[name]) for name, hint in hints.items() if name in values})


def _revive(hint: Any, value: Any) -> Any:
    if isinstance(value, Prompt):
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        return from_plain(hint, value)
    if (kind := get_origin(hint)) in (tuple, list):
        inner = get_args(hint)[0]
        return kind(_revive(inner, item) for item in value)
    if get_origin(hint) is UnionType and value is not None:
        return _revive(next(a for a in get_args(hint) if a is not type(None)), value)
    return value


@cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and value of everything in nested values that is not a mapping with entries.

    Args:
        values: Nested plain values.
        prefix: Text before every name.
    """
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def flat(values: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return nested values under dotted names; lists and similar values as text."""
    return {name: v if isinstance(v, bool | int | float | str) else str(v) for name, v in leaves(values)}
