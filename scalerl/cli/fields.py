"""The fields of a configuration as help: allowed values, defaults and meaning, one group at a time, in 80 columns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from scalerl.core.errors import ConfigError, nearest
from scalerl.training.config import RunConfig, plain_values
from scalerl.training.config.base import Part, records
from scalerl.training.config.overrides import groups

HELP_COLUMNS = 80
"""Columns of a help text, also in a pipe."""
TYPES = {int: "N", float: "X", str: "TEXT", bool: "true|false", NoneType: "none", dict: "TABLE", Any: "VALUE"}
"""Placeholder of a value, by its type."""


def field_help(group: str, config: RunConfig) -> str:
    """Return help on a group of fields, such as recipe.loss; "": the fields outside groups, "all": all fields.

    The values of `config` are shown as defaults.

    Raises:
        ConfigError: There is no such group.
    """
    all_groups, shown = groups(), plain_values(config, mode="json")
    names = list(dict.fromkeys(name for name, _ in all_groups if name))
    if group not in ("", "all", *names):
        raise ConfigError(f"--help: got {group[:80]!r}{nearest(group, names)}; allowed: all, {', '.join(names)}")
    lines = [
        line for name, record in all_groups if group in (name, "all") for line in _group_lines(name, record, shown)
    ]
    if not group:
        lines += [
            "",
            *folded(f"groups (--help GROUP lists one, --help all lists all fields): {', '.join(names)}", 2),
        ]
    return "\n".join(lines)


def _group_lines(name: str, record: type[Part], values: Any) -> Iterator[str]:
    for step in name.split(".") if name else ():
        values = values.get(step) if isinstance(values, dict) else None
        values = values[0] if isinstance(values, list) and values else values
    tag = record.model_fields["kind"].default if "kind" in record.model_fields else None
    values = values if isinstance(values, dict) and values.get("kind") == tag else {}
    yield ""
    if name:
        yield from folded(f"{name}{f'.kind = {tag}' if tag else ''}: {(record.__doc__ or '').splitlines()[0]}", 2)
    for key, field in record.model_fields.items():
        path, words = f"{name}.{key}".lstrip("."), allowed(field.annotation)
        if key not in values and not field.is_required():
            values = {**values, key: field.get_default(call_default_factory=True)}
        words = words.replace("|", "| ") if len(words) > HELP_COLUMNS // 2 else words  # so that the line can be wrapped
        if words == "TABLE" and records(field.annotation):
            words += f"  (--help {path})"
        elif key in values:
            words += f"  [{_shown(values[key])}]"
        if key != "kind":
            yield from folded(f"  --{path} {words}", 6)
            yield from folded(f"      {' '.join((field.description or '').split())}", 6)


def allowed(annotation: Any) -> str:
    """Return the values that a field allows, such as `prompt|sample|token|custom`, or the placeholder of their type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(map(str, arguments))
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return str(annotation.model_fields["kind"].default) if "kind" in annotation.model_fields else "TABLE"
    if origin is tuple:
        return f"[{', '.join('...' if argument is ... else allowed(argument) for argument in arguments)}]"
    if origin in (None, dict):
        return TYPES.get(origin or annotation, "TEXT")
    inside = arguments[:1] if origin is Annotated else arguments
    return "|".join(dict.fromkeys(word for argument in inside for word in allowed(argument).split("|")))


def _shown(value: Any) -> str:
    """Return a default as a user writes it; a table is its kind."""
    if isinstance(value, dict | Part):
        return str(dict(value).get("kind", "{}"))
    if isinstance(value, list | tuple) and any(isinstance(item, dict | Part) for item in value):
        return ", ".join(map(_shown, value))
    return "none" if value is None else value if isinstance(value, str) and value else json.dumps(value)


def folded(line: str, indent: int) -> list[str]:
    """Return a line in WIDTH columns; the rest is indented, and words longer than a line are broken."""
    return textwrap.wrap(line, HELP_COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False)
