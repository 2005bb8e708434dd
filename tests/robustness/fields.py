"""All fields of a configuration with values of a wrong type, found by walking over the records."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from scalerl.config import RunConfig
from scalerl.config.base import Part, records

DATE = datetime.date(2026, 1, 2)
NAN, INFINITY, TABLE = float("nan"), float("inf"), {"no_such_key": 1}
WRONG: dict[Any, tuple[Any, ...]] = {
    int: (True, "many", 1.5, NAN, INFINITY, DATE, [[1]], TABLE, 10**30),
    float: (True, "much", NAN, INFINITY, DATE, [[1.0]], TABLE),
    str: (7, True, DATE, ["x", 3], "half\ud800", "nul\0"),
    bool: ("perhaps", 7, DATE, [True], TABLE),
    Literal: ("no such choice", 7, DATE, ["x"], TABLE),
    dict: (7, "text", [1]),
    Part: (7, DATE, [1]),
}
"""Values that no field of a type accepts."""


def types_of(annotation: Any) -> set[Any]:
    """Return the types that a field accepts, as keys of WRONG; the types of a tuple's entries are included."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return {Part}
    origin = get_origin(annotation)
    if origin in (Literal, dict):
        return {origin}
    arguments = [a for a in get_args(annotation)[: 1 if origin is Annotated else None] if a is not ...]
    return {kind for argument in arguments for kind in types_of(argument)} if arguments else {annotation}


def fields(cls: type[Part] = RunConfig, path: tuple[str, ...] = (), kinds: Any = None) -> Iterator[tuple[Any, ...]]:
    """Yield (path, annotation, required kinds of the parent tables) of every field of a record."""
    for name, field in cls.model_fields.items():
        members = records(field.annotation)
        yield (*path, name), field.annotation, kinds or {}
        for member in members:
            chosen = {} if len(members) == 1 else {(*path, name): member.model_fields["kind"].default}
            yield from fields(member, (*path, name), {**(kinds or {}), **chosen})


def table(path: tuple[str, ...], value: Any, kinds: dict[tuple[str, ...], str]) -> dict[str, Any]:
    """Return nested tables with one field and the kinds that it requires."""
    out: dict[str, Any] = {}
    for at, content in [*(((*place, "kind"), kind) for place, kind in kinds.items()), (path, value)]:
        inner = out
        for step in at[:-1]:
            inner = inner.setdefault(step, {})
        inner[at[-1]] = content
    return out


def wrong_fields() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (description, configuration) for every field and every value that its type excludes."""
    for path, annotation, kinds in fields():
        accepted = types_of(annotation) - {type(None)}
        if path[-1] == "kind" or Any in accepted:
            continue
        lists = [set(map(repr, WRONG[kind])) for kind in accepted]
        values = [value for value in WRONG[next(iter(accepted))] if all(repr(value) in some for some in lists)]
        kind = "".join(f"[{kind}]" for kind in kinds.values())
        for value in values:
            yield f"{'.'.join(path)}{kind} = {value!r}", table(path, value, kinds)
