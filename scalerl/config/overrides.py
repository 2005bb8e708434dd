"""Reads TOML files and dotted options into one validated configuration, and writes it as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalerl.config.base import Part, build, records
from scalerl.config.data import AnyTask
from scalerl.config.presets import PRESETS, own_data_preset
from scalerl.config.recipe import AGGREGATION_OF_LOSS, kind_of
from scalerl.config.run import RunConfig
from scalerl.core.errors import ConfigError, nearest, short
from scalerl.core.files import read_bytes, trouble
from scalerl.core.serialization import leaves

LARGEST = 1 << 20
"""Largest configuration file in bytes; reading a larger one and listing its errors would take minutes."""

ALIASES = {
    "model": ("model", "path"),
    "data": ("data", "path"),
    "task": ("data", "task"),
    "reward": ("data", "reward"),
    "device": ("hardware", "device"),
    "seed": ("seed",),
    "steps": ("steps",),
    "suites": ("suites",),
}
"""Short names of the fields that most users set."""

_ALIAS_KINDS = {"model": ("model", "hf"), "data": ("data", "file")}


def read_config(file: Path | None, overrides: Sequence[str] | Mapping[str, Any]) -> RunConfig:
    """Read a TOML file and overrides into one validated configuration.

    Args:
        file: TOML file with the sections of RunConfig, and optionally `preset = "lab"`; None: the preset alone.
        overrides: Words of a command line such as `--recipe.loss.max_ratio 4` or `--recipe.loss=gspo`, with dotted
            names or those in ALIASES; or a mapping of these names to values, `{"recipe.loss.max_ratio": 4}`.

    Raises:
        ConfigError: The file is unreadable, a key is unknown, a type is wrong, or a value is out of range.
    """
    values = read_toml(file) if file else {}
    source = str(file) if file else "command line"
    typed = _read_values(overrides) if isinstance(overrides, Mapping) else _read_overrides(overrides)
    preset = typed.pop("preset", values.pop("preset", None))
    if preset is None:
        merged = merge(values, typed)
        tasks = merged.get("data", {})
        tables = [task for task in (tasks if isinstance(tasks, list) else [tasks]) if isinstance(task, dict)]
        own = any(task.keys() & {"path", "set", "dataset", "environment", "function"} for task in tables)
        preset = _own_data_preset(merged) if own else "lab"
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(f"preset: got {short(preset)}{nearest(str(preset), PRESETS)}; allowed: {', '.join(PRESETS)}")
    from_file = merge(_preset_values(preset, values, typed), values)
    try:
        return build(RunConfig, merge(from_file, typed), "command line")
    except ConfigError as error:
        try:  # not earlier: the file alone may lack fields that the command line adds (--model)
            build(RunConfig, from_file, "command line")
        except ConfigError as own:
            if str(own) == str(error):  # an error of the file is reported with its name
                raise ConfigError(str(own).replace("command line", source, 1)) from None
        raise


def _own_data_preset(values: Mapping[str, Any]) -> str:
    def at(table: str, name: str, default: str) -> str:
        part = values.get(table)
        return str(part.get(name, default)) if isinstance(part, Mapping) else default

    return own_data_preset(at("hardware", "device", "auto"), at("placement", "backend", "local"))


def _preset_values(preset: str, file: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a preset, without the aggregation if it follows from the user's loss."""
    values = plain_values(PRESETS[preset])
    recipes = [given["recipe"] for given in (file, typed) if isinstance(given.get("recipe"), Mapping)]
    recipe = values["recipe"]
    for changes in recipes:
        recipe = merge(recipe, changes)
    if kind_of(recipe["loss"]) in AGGREGATION_OF_LOSS and not any("aggregation" in changes for changes in recipes):
        del values["recipe"]["aggregation"]
    return values


def build_from(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> RunConfig:
    """Apply overrides by dotted names to plain values, and validate the result.

    Raises:
        ConfigError: A key is unknown, a type is wrong, or a value is out of range.
    """
    return build(RunConfig, merge(values, _read_values(overrides)), "fields")


def parse_config(text: str, source: str) -> RunConfig:
    """Read a complete configuration from text that `to_toml` wrote."""
    return build(RunConfig, parse_toml(text, source), source)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply `changes` to `base`; a change of `kind` drops the fields of the other kind.

    If `base` has a list of tasks, a change addresses one of them by its name: {"data": {"math": {"share": 2.0}}}.
    """
    out = dict(base)
    for key, value in changes.items():
        old = out.get(key)
        if isinstance(old, list) and isinstance(value, Mapping):
            out[key] = _merge_tasks(old, value)
            continue
        if isinstance(old, Mapping) and isinstance(value, str) and "kind" in old:
            value = {"kind": value}
        if isinstance(old, str) and isinstance(value, Mapping) and "kind" not in value:
            old = {"kind": old}
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            other_kind = "kind" in value and value["kind"] != old.get("kind")
            out[key] = dict(value) if other_kind else merge(old, value)
        else:
            out[key] = value
    return out


class _Tasks(Part):
    data: tuple[AnyTask, ...]


def _merge_tasks(tasks: list[dict[str, Any]], changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = [task.curve for task in build(_Tasks, {"data": tasks}, "[[data]]").data]
    for name, change in changes.items():
        if name not in names or not isinstance(change, Mapping):
            raise ConfigError(
                f"data: this run has the tasks {', '.join(names)}; got the option data.{name}; allowed: "
                f"--data.NAME.FIELD with one of these names, or change the [[data]] tables of the file"
            )
    return [merge(task, changes.get(name, {})) for task, name in zip(tasks, names, strict=True)]


def plain_values(config: RunConfig, mode: str = "python") -> dict[str, Any]:
    """Return nested plain values; one task is a table, several are a list of tables."""
    values = config.model_dump(mode=mode)
    tasks = list(values.pop("data"))
    return {**values, "data": tasks[0] if len(tasks) == 1 else tasks}


def by_name(config: RunConfig) -> dict[str, Any]:
    """Return the fields of a configuration by dotted name."""
    return {name: value for name, value in leaves(plain_values(config, mode="json")) if value != {}}


def to_toml(config: RunConfig) -> str:
    """Return the configuration as TOML; `read_config` reads it back to an equal value."""
    import tomli_w

    return tomli_w.dumps(_without_nulls(plain_values(config, mode="json")))


def groups(cls: type[Part] = RunConfig, name: str = "") -> list[tuple[str, type[Part]]]:
    """Return (dotted name, record) of a configuration and of all records in it; a choice gives one entry per kind."""
    inner = [(key, member) for key, field in cls.model_fields.items() for member in records(field.annotation)]
    return [(name, cls), *(one for key, member in inner for one in groups(member, f"{name}.{key}".lstrip(".")))]


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: It cannot be read, or is not TOML.
    """
    try:
        content = read_bytes(file)
    except OSError as error:
        raise ConfigError(trouble(error)) from None
    if len(content) > LARGEST:
        raise ConfigError(f"{file}: got {len(content):,} bytes; allowed: a TOML file of at most {LARGEST:,}")
    return parse_toml(content, str(file))


def parse_toml(text: str | bytes, source: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ConfigError: The text is not TOML or not UTF-8, has integers of thousands of digits, or is nested too deeply.
    """
    try:
        return tomllib.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))  # Windows writes a mark
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{source}: not valid TOML: {problem}") from None


def _read_overrides(words: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    queue, name, text = list(words), "", ""
    while queue:
        word = queue.pop(0)
        if not word.startswith("--"):
            hint = f" (a list is one value: --{name} '[{text}, {word}]')" if name else ""
            raise ConfigError(f"got {short(word)}; allowed: one TOML file, then options of the form --name value{hint}")
        name, equals, text = word[2:].partition("=")
        if not equals:
            if not queue:
                raise ConfigError(f"--{name}: a value is needed and none was given")
            text = queue.pop(0)
        _set(values, name, _parse(text))
    return values


def _read_values(given: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in given.items():
        plain = value.model_dump() if isinstance(value, Part) else str(value) if isinstance(value, Path) else value
        _set(values, name, "none" if plain is None else plain)
    return values


def _set(values: dict[str, Any], name: str, value: Any) -> None:
    """Set a value by its dotted or short name."""
    if name in _ALIAS_KINDS and not isinstance(value, Mapping | list | tuple):
        section, kind = _ALIAS_KINDS[name]
        values.setdefault(section, {})["kind"] = kind
        _put(values, ALIASES[name], value)
    elif name in ("model", "data"):  # a whole section
        _put(values, (name,), value)
    else:
        _put(values, ALIASES.get(name) or _known_path(name), value)


def _known_path(name: str) -> tuple[str, ...]:
    """Check a dotted name against all fields, so that the error for a typo names the nearest one in any section."""
    path = name.replace("-", "_")
    known = {f"{group}.{field}".lstrip(".") for group, record in groups() for field in record.model_fields} | {"preset"}
    if path in known:
        return tuple(path.split("."))
    section, _, field = path.partition(".")
    if section == "data" and f"data.{field.partition('.')[2]}" in known:  # --data.NAME.FIELD of one of several tasks
        return ("data", field.partition(".")[0], *field.partition(".")[2].split("."))
    tail = path.split(".")[-1]
    same_tail = sorted(k for k in known if k.split(".")[-1] == tail)
    hint = f" (did you mean --{same_tail[0]}?)" if same_tail else nearest(path, known).replace("'", "")
    raise ConfigError(f"unknown option --{name[:80]}{hint}; `scalerl train --help` lists all")


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        inner = values.setdefault(step, {})
        if isinstance(inner, str):
            inner = values[step] = {"kind": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"--{'.'.join(path)}: --{step} was given as {short(inner)}; give one of the two")
        values = inner
    inner = values.get(path[-1])
    if isinstance(inner, dict) and not isinstance(value, str):
        given = ", ".join(f"--{'.'.join((*path, key))}" for key in inner)
        raise ConfigError(
            f"--{'.'.join(path)}: got {short(value)}, which would drop the earlier {given}; give the whole table "
            "first, or only its fields"
        )
    values[path[-1]] = {**inner, "kind": value} if isinstance(inner, dict) and isinstance(value, str) else value


def _parse(text: str) -> Any:
    """Parse the value of an option as TOML; text that is not one TOML value is returned unchanged."""
    try:
        values = parse_toml(f"value = {text}", "")
    except ConfigError:
        return text
    return text if len(values) > 1 or ("#" in text and isinstance(values["value"], int | float)) else values["value"]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return "none" if value is None else value
