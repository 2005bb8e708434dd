"""Reads TOML files and dotted options into one validated configuration, and writes it as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from scalerl.core.errors import ConfigError, nearest, short
from scalerl.core.files import read_bytes, trouble
from scalerl.core.serialization import leaves
from scalerl.training.config.base import Part, build, records
from scalerl.training.config.data import AnyTask
from scalerl.training.config.presets import PRESETS, own_data_preset
from scalerl.training.config.recipe import AGGREGATION_OF_LOSS, Recipe, adopt, kind_of, named_recipes
from scalerl.training.config.run import RunConfig

LARGEST_FILE_BYTES = 1 << 20
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


def read_config(
    file: Path | None, overrides: Sequence[str] | Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a TOML file and overrides into one validated configuration.

    Args:
        file: TOML file with the sections of RunConfig, and optionally `preset = "lab"`; None: the preset alone.
        overrides: Words of a command line such as `--recipe.loss.max_ratio 4` or `--recipe.loss=gspo`, with dotted
            names or those in ALIASES; or a mapping of these names to values, `{"recipe.loss.max_ratio": 4}`.
        defaults: Values by these names in the place of those of the preset.

    Raises:
        ConfigError: The file is unreadable, a key is unknown, a type is wrong, or a value is out of range.
    """
    values = read_toml(file) if file else {}
    given = "keywords" if isinstance(overrides, Mapping) else "command line"
    source = str(file) if file else given
    typed = _typed(overrides)
    preset = _pop_preset(values, typed)
    length = typed["recipe"].get("length") if isinstance(typed.get("recipe"), Mapping) else None
    length = {"kind": length} if isinstance(length, str) else length
    if isinstance(length, Mapping) and length.get("kind", "interruption") == "interruption":
        # whoever types an interruption means it, whatever the model
        typed["recipe"] = {**typed["recipe"], "length": {"models": "all", **length}}
    start = merge(_preset_values(preset, values, typed), _read_values(defaults or {}))
    from_file = _merge_recipe(start, values)
    try:
        return build(RunConfig, _merge_recipe(from_file, typed), given)
    except ConfigError as error:
        try:  # not earlier: the file alone may lack fields that the command line adds (--model)
            build(RunConfig, from_file, given)
        except ConfigError as file_error:
            if str(file_error) == str(error):  # an error of the file is reported with its name
                raise ConfigError(str(file_error).replace(given, source, 1)) from None
        raise


def preset_of(file: Path | None, overrides: Sequence[str] | Mapping[str, Any]) -> str:
    """Return the name of the preset from which `read_config` starts; arguments and errors are its own."""
    return _pop_preset(read_toml(file) if file else {}, _typed(overrides))


def fields_given(file: Path | None, overrides: Sequence[str] | Mapping[str, Any]) -> set[str]:
    """Return the outer fields that a file or a command line sets, "preset" among them; arguments as for `read_config`.

    Example: {"model", "data", "steps"}
    """
    return {*(read_toml(file) if file else {}), *_typed(overrides)}


def _typed(overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    return _read_values(overrides) if isinstance(overrides, Mapping) else _read_overrides(overrides)


def _pop_preset(values: dict[str, Any], typed: dict[str, Any]) -> str:
    """Remove the preset from the values of a file and of a command line, and return it or the one that suits them."""
    preset = typed.pop("preset", values.pop("preset", None))
    if preset is None:
        merged = merge(values, typed)
        tasks = merged.get("data", {})
        tables = [task for task in (tasks if isinstance(tasks, list) else [tasks]) if isinstance(task, dict)]
        has_own_data = any(task.keys() & {"path", "set", "dataset", "environment", "function"} for task in tables)
        preset = _own_data_preset(merged) if has_own_data else "lab"
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(f"preset: got {short(preset)}{nearest(str(preset), PRESETS)}; allowed: {', '.join(PRESETS)}")
    return preset


def _own_data_preset(values: Mapping[str, Any]) -> str:
    def at(table: str, name: str, default: str) -> str:
        part = values.get(table)
        return str(part.get(name, default)) if isinstance(part, Mapping) else default

    return own_data_preset(at("hardware", "device", "auto"), at("placement", "backend", "local"))


def _preset_values(preset: str, file: Mapping[str, Any], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a preset, without the aggregation if it follows from the user's loss."""
    values = plain_values(PRESETS[preset])
    recipes = [source["recipe"] for source in (file, typed) if isinstance(source.get("recipe"), Mapping)]
    recipe = values["recipe"]
    for changes in recipes:
        recipe = merge(recipe, changes)
    if kind_of(recipe["loss"]) in AGGREGATION_OF_LOSS and not any("aggregation" in changes for changes in recipes):
        del values["recipe"]["aggregation"]
    return values


def _merge_recipe(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply `changes` to `base`; in them, a recipe may be a name (`--recipe grpo`), or a table with the name as `kind`.

    The named recipe gets the sizes of the base's; then the other fields of the table apply.

    Raises:
        ConfigError: No recipe has the name, or the recipe of the base is invalid.
    """
    recipe = changes.get("recipe")
    name = recipe.get("kind") if isinstance(recipe, Mapping) else recipe
    if name is None:
        return merge(base, changes)
    recipes = named_recipes()
    if not isinstance(name, str) or name not in recipes:
        close = nearest(str(name), recipes)
        raise ConfigError(f"recipe: got {short(name)}{close}; allowed: {', '.join(recipes)}, or a table of fields")
    fields = {key: value for key, value in recipe.items() if key != "kind"} if isinstance(recipe, Mapping) else {}
    adopted = adopt(recipes[name], build(Recipe, base["recipe"], "recipe"))
    return merge({**base, "recipe": adopted.model_dump()}, {**changes, "recipe": fields})


def build_from(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> RunConfig:
    """Apply overrides by dotted names to plain values, and validate the result.

    Raises:
        ConfigError: A key is unknown, a type is wrong, or a value is out of range.
    """
    return build(RunConfig, _merge_recipe(values, _read_values(overrides)), "fields")


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


def changed_values(part: Part, base: Part | None = None) -> dict[str, Any]:
    """Return the values of a record that differ from those of another one, with its kind, as TOML values.

    Args:
        part: The record.
        base: The other one; None, or one of another kind: its defaults.
    """

    def plain(value: Any, other: Any) -> Any:
        if isinstance(value, tuple):
            values = [plain(item, None) for item in value]
            return values[0] if len(value) == 1 and isinstance(value[0], Part) else values
        if isinstance(value, Part):
            return changed_values(value, other if isinstance(other, Part) else None)
        return "none" if value is None else value

    fields, like = type(part).model_fields, base if type(base) is type(part) else None
    others = dict(like) if like is not None else {
        name: field.get_default(call_default_factory=True) for name, field in fields.items()
    }  # fmt: skip
    changed = {name for name, value in part if value != others[name]}
    kind = {"kind"} if like is None else set()
    return {name: plain(value, like and others[name]) for name, value in part if name in changed | kind}


def groups(cls: type[Part] = RunConfig, name: str = "") -> list[tuple[str, type[Part]]]:
    """Return (dotted name, record) of a configuration and of all records in it; a choice gives one entry per kind."""
    inner = [(key, member) for key, field in cls.model_fields.items() for member in records(field.annotation)]
    return [(name, cls), *(group for key, member in inner for group in groups(member, f"{name}.{key}".lstrip(".")))]


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: It cannot be read, or is not TOML.
    """
    try:
        return parse_toml(read_bytes(file, LARGEST_FILE_BYTES), str(file))
    except OSError as error:
        raise ConfigError(trouble(error)) from None


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
        _set(values, name, _read_word(text, name))
    return values


def _read_values(overrides: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in overrides.items():
        plain = value.model_dump() if isinstance(value, Part) else str(value) if isinstance(value, Path) else value
        try:
            _set(values, name, "none" if plain is None else plain)
        except UnknownField as error:
            text = str(error).replace("unknown option --", "unknown field ").replace("did you mean --", "did you mean ")
            raise ConfigError(text) from None
    return values


class UnknownField(ConfigError):
    """A name is not that of a field; the text has it as an option of the command line, with the nearest one."""


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
    names = {*_fields(), "preset"}
    if path in names:
        return tuple(path.split("."))
    section, _, field = path.partition(".")
    if section == "data" and f"data.{field.partition('.')[2]}" in names:  # --data.NAME.FIELD of one of several tasks
        return ("data", field.partition(".")[0], *field.partition(".")[2].split("."))
    tail, typed = path.split(".")[-1], path.split(".")

    def distance(name: str) -> tuple[int, int, bool, int, str]:
        """Sort fields by the sections that they share with the typed name; the recipe's come first."""
        parts = name.split(".")
        end, start = _alike(parts[::-1], typed[::-1]), _alike(parts, typed)
        return -end, -start, parts[0] != "recipe", len(parts), name

    same_tail = sorted((name for name in names if name.split(".")[-1] == tail), key=distance)
    hint = f" (did you mean --{same_tail[0]}?)" if same_tail else nearest(path, names).replace("'", "")
    raise UnknownField(f"unknown option --{name[:80]}{hint}; `scalerl train --help` lists all")


def _alike(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many entries two lists share at their start."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


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
        options = ", ".join(f"--{'.'.join((*path, key))}" for key in inner)
        raise ConfigError(
            f"--{'.'.join(path)}: got {short(value)}, which would drop the earlier {options}; give the whole table "
            "first, or only its fields"
        )
    values[path[-1]] = {**inner, "kind": value} if isinstance(inner, dict) and isinstance(value, str) else value


def _read_word(text: str, name: str) -> Any:
    """Read the value of an option by the type of its field.

    Numbers, lists and tables are TOML. Text is what was typed, even if it looks like a number, a date or a list; a TOML
    string in quotes is its content, so that it can have line breaks. A word of another type is returned unchanged, for
    an error that shows it.
    """
    for annotation in _annotations(name):
        holds_text = _is_text(_entry(annotation))
        value = _fit(_toml_value(text, str if holds_text else float), annotation)
        if value is not _MISFIT:
            return value
    return text


def _annotations(name: str) -> list[Any]:
    """Return the types that an option accepts, one for each record that has its field."""
    if name in _SPECIAL:
        return [_SPECIAL[name]]
    path = ALIASES.get(name) or _known_path(name)
    if path[0] == "data" and len(path) > 2 and f"data.{path[1]}" not in _fields():  # a field of one of several tasks
        path = ("data", *path[2:])
    return _fields()[".".join(path)]


_SPECIAL: dict[str, Any] = {
    "preset": str,
    "suites": tuple[str | dict, ...],  # type: ignore[type-arg]
    **{name: RunConfig.model_fields[name].annotation for name in _ALIAS_KINDS},  # a path or a whole section
}
"""Types of options that are no fields, or that have a field's name."""


@cache
def _fields() -> dict[str, list[Any]]:
    """Return the types of each field by its dotted name."""
    fields: dict[str, list[Any]] = {}
    for group, record in groups():
        for name, field in record.model_fields.items():
            fields.setdefault(f"{group}.{name}".lstrip("."), []).append(field.annotation)
    return fields


_MISFIT = object()


def _fit(value: Any, annotation: Any) -> Any:
    """Return a TOML value as a type accepts it, or _MISFIT; ranges and lengths are not checked.

    In a list or table of texts, other values become text.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _fit(value, arguments[0])
    if origin in (Union, UnionType):
        choices = (_fit(value, argument) for argument in arguments)
        return next((fitted for fitted in choices if fitted is not _MISFIT), _MISFIT)
    if origin is Literal:
        return value if isinstance(value, str) and value in arguments else _MISFIT
    if origin is tuple and isinstance(value, list):
        entries = [_fit_entry(entry, arguments[0]) for entry in value]
        return _MISFIT if any(entry is _MISFIT for entry in entries) else entries
    if origin is tuple:  # some fields accept one entry in place of a list
        return _fit(value, arguments[0])
    if origin is dict and isinstance(value, dict):
        return {key: _fit_entry(entry, arguments[1]) for key, entry in value.items()}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if records(annotation):
        return value if isinstance(value, dict | str) else _MISFIT
    table, text = isinstance(value, dict), isinstance(value, str)
    fits = {Any: True, bool: isinstance(value, bool), int: number, float: number, dict: table, str: text}
    return value if fits.get(annotation, False) else _MISFIT


def _fit_entry(value: Any, annotation: Any) -> Any:
    fitted = _fit(value, annotation)
    if fitted is not _MISFIT or records(annotation):
        return fitted
    if not _is_text(annotation) or isinstance(value, list | dict):
        return value  # an error will show the entry
    return str(value).lower() if isinstance(value, bool) else str(value)


def _entry(annotation: Any) -> Any:
    """Return the type of the entries of a list or table, or None."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, UnionType):
        return next((entry for entry in map(_entry, arguments) if entry is not None), None)
    return arguments[0] if origin is tuple else arguments[1] if origin is dict else None


def _is_text(annotation: Any) -> bool:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation is str or (get_origin(annotation) in (Union, UnionType) and str in get_args(annotation))


def _toml_value(text: str, parse_float: Callable[[str], Any]) -> Any:
    """Return the value that a text is in TOML; _MISFIT if it is none, such as two values or one with a comment."""
    try:
        alone = tomllib.loads(f"value = {text}", parse_float=parse_float)
        listed = tomllib.loads(f"value = [{text}]", parse_float=parse_float)  # not with a comment
    except (ValueError, RecursionError):
        return _MISFIT
    return alone["value"] if alone.keys() == listed.keys() == {"value"} else _MISFIT


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return "none" if value is None else value
