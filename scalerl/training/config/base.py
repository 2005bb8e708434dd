"""The base class of all configuration records: frozen, without unknown keys, documented by field; types of fields.

A failed validation becomes one readable message with what was got, what is allowed, and the nearest name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, LiteralString, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from scalerl.core.errors import ConfigError, nearest, short

MOST_LISTED = 5
"""Largest number of problems that one message lists; it also counts the others."""

Auto = Literal["auto"]
"""scalerl chooses. In all fields, "auto" means this, None (in TOML "none") is off, and 0 is a number."""
Count = Annotated[int, Field(ge=1, le=10**9)]
"""At least 1."""
Natural = Annotated[int, Field(ge=0, le=10**9)]
"""At least 0."""
ObjectCount = Annotated[int, Field(ge=1, le=10**7)]
"""Counts of objects in memory, such as prompts."""
Few = Annotated[int, Field(ge=1, le=10**4)]
"""Counts of processes, layers, samples per prompt."""
NoneOrFew = Annotated[int, Field(ge=0, le=10**4)]
"""The same, or 0."""
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Seeds that torch accepts."""
Positive = Annotated[float, Field(gt=0)]
"""Above 0."""
Share = Annotated[float, Field(ge=0, le=1)]
"""From 0 to 1."""
Fraction = Annotated[float, Field(gt=0, le=1)]
"""Above 0, at most 1."""
Seconds = Annotated[float, Field(gt=0, le=1e7)]
"""Time limits in seconds: at most 115 days, because larger values overflow timers of the system."""


ValueT = TypeVar("ValueT")


def chosen(value: ValueT | Auto) -> ValueT:
    """Return the value of a field that may be "auto" before a run is resolved (training/loop/resolve.py)."""
    assert value != "auto"
    return value


def _ordered(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] > ends[1]:
        raise ValueError(f"got {list(ends)}; allowed: the lower end first")
    return ends


ORDERED = AfterValidator(_ordered)
"""Of the two ends of a range: the lower one is first."""


def as_list(value: Any) -> Any:
    """Return one value as a list; a list is returned unchanged."""
    return value if isinstance(value, list | tuple) else [value]


def checked_conditions(conditions: tuple[str, ...]) -> tuple[str, ...]:
    """Return conditions that can be read.

    Raises:
        ValueError: A text is not a condition; the message lists the allowed forms.
    """
    if conditions:
        # imported here so that reading a configuration does not load numpy
        from scalerl.reading.curves.stop import stop_rule

        for condition in conditions:
            stop_rule(condition)
    return conditions


StopWhen = Annotated[tuple[str, ...], BeforeValidator(as_list), AfterValidator(checked_conditions)]


class Part(BaseModel):
    """A frozen record; the documentation of each field follows the field."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_shorthands(cls, values: Any) -> Any:
        """Read `loss = "gspo"` as `loss = {kind = "gspo"}`, and "none" as None, because TOML has no null."""
        if not isinstance(values, dict):
            return values
        names = cls.model_fields.keys()
        faults = [
            InitErrorDetails(type=PydanticCustomError("stand_in", fault), loc=(key,), input=value)
            for key, value in values.items()
            if key in names and (fault := _stand_in(cls, key, value))
        ]
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return {key: _shorthand(cls, key, value) for key, value in values.items()}


PartT = TypeVar("PartT", bound=Part)


def build(cls: type[PartT], values: Mapping[str, Any], source: str) -> PartT:
    """Validate nested plain values into a record.

    Args:
        cls: The record to build.
        values: Nested mappings, as read from TOML or the command line.
        source: Origin of the values, for messages: a file name, or "command line".

    Raises:
        ConfigError: A key is unknown, a type is wrong or a value is out of range; the message lists the problems.
    """
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{source}: {problems(error, cls)}") from None


def replace(part: PartT, **changes: Any) -> PartT:
    """Return a copy of `part` with some fields changed, validated again (pydantic's own copy does not validate).

    Raises:
        ConfigError: A value is not valid; see `build`.
    """
    try:
        return type(part).model_validate({**dict(part), **changes})
    except ValidationError as error:
        raise ConfigError(problems(error, type(part))) from None


def read_option(option: str, read: Callable[[], PartT]) -> PartT:
    """Return the result of `read`; prefix its errors with the option that the user gave.

    Raises:
        ConfigError: Raised by `read`.
    """
    try:
        return read()
    except ConfigError as error:
        raise ConfigError(f"{option}: {str(error).partition(': ')[2] or error}") from None


def problems(error: ValidationError, cls: type[Part] | None = None) -> str:
    """Return the problems of a failed validation as text.

    Args:
        error: The error of pydantic.
        cls: The validated record, whose field names are suggested for unknown keys.
    """
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] == "missing")
    allowed: dict[str, list[str]] = {}  # by the value that was got: a field of several types has a problem for each
    for line in dict.fromkeys(
        _explain(cls, detail) for detail in details[:MOST_LISTED]
    ):  # a long list may have 400,000
        got, _, what = line.partition("; ")
        allowed.setdefault(got, []).append(what)
    lines = [f"{got}; {' or '.join(what)}" if any(what) else got for got, what in allowed.items()]
    more = [f"and {len(details) - MOST_LISTED:,} more"] if len(details) > MOST_LISTED else []
    return "; ".join([*lines, *more])


def _shorthand(cls: type[Part], key: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    has_none, has_kinds = _shorthands(cls, key)
    if value == "none" and has_none:
        return None
    return {"kind": value} if has_kinds else value


@cache
def _shorthands(cls: type[Part], key: str) -> tuple[bool, bool]:
    """Return whether a field may be None, and whether it is one of several records."""
    if key not in cls.model_fields:
        return False, False
    annotation = cls.model_fields[key].annotation
    return NoneType in get_args(annotation), len(records(annotation)) > 1


@cache
def _accepted(cls: type[Part], name: str) -> frozenset[Any]:
    """Return the types of a field and of the entries of a sequence in it, but not those inside a mapping."""

    def types(annotation: Any) -> Iterator[Any]:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin in (None, Literal, dict):
            yield origin or annotation
        for argument in () if origin in (Literal, dict) else arguments[:1] if origin is Annotated else arguments:
            yield from types(argument)

    return frozenset(types(cls.model_fields[name].annotation))


def _stand_in(cls: type[Part], name: str, value: Any) -> LiteralString | None:
    """Return an error for `true` in place of a number (Python counts it as 1), or for text that is not valid UTF-8.

    Pydantic accepts both.
    """
    accepted = _accepted(cls, name)
    for single in value if isinstance(value, list | tuple) else (value,):
        if isinstance(single, bool) and accepted & {int, float} and not accepted & {bool, Any}:
            return "allowed: a number"
        if isinstance(single, str) and ("\0" in single or not is_utf8(single)):
            return "allowed: UTF-8 text without NUL characters"
    return None


def is_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8; a lone surrogate, or bytes of a command line, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _explain(cls: type[Part] | None, detail: Any) -> str:
    path = [str(p) for p in detail["loc"]]
    owner, steps = _owner(cls, path)
    key = ".".join(steps)
    kind, got, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    if kind == "extra_forbidden":
        names = list(owner.model_fields) if owner else []
        below = next((f" (did you mean {name!r}?)" for name in _below(owner, path[-1])), "")
        return f"unknown key {short(key)}{below or nearest(path[-1], names)}; allowed here: {', '.join(names)}"
    if kind == "union_tag_invalid":
        tag, tags = str(context.get("tag")), str(context.get("expected_tags", "")).replace("'", "").split(", ")
        return f"{key}.kind: got {short(tag)}{nearest(tag, tags)}; allowed: {', '.join(tags)}"
    if kind == "literal_error":
        names = [n.strip().strip("'") for n in str(context.get("expected", "")).replace(" or ", ", ").split(",")]
        return f"{key}: got {short(got)}{nearest(str(got), names)}; allowed: {', '.join(n for n in names if n)}"
    if kind == "missing":
        return f"{key}: a value is needed and none was given"
    if kind == "value_error":
        return f"{key}: {context.get('error', detail['msg'])}" if key else str(context.get("error", detail["msg"]))
    message = detail["msg"]
    return f"{key}: got {short(got)}; {message[0].lower() + message[1:]}"


def _below(owner: type[Part] | None, name: str) -> Iterator[str]:
    """Yield the dotted names of fields called `name` in the records of a record."""
    for key, field in owner.model_fields.items() if owner else ():
        for member in records(field.annotation):
            if name in member.model_fields and name != "kind":
                yield f"{key}.{name}"


def _owner(cls: type[Part] | None, path: list[str]) -> tuple[type[Part] | None, list[str]]:
    """Follow the location of a pydantic error; return the record of its last step, and the path as a user writes it.

    In a union, the location contains the tag of the member as an additional step, which the user did not type.
    """
    owner, shown, remaining_path = cls, list[str](), deque(path)
    while remaining_path:
        step = remaining_path.popleft()
        shown.append(step)
        if not remaining_path or owner is None or step not in owner.model_fields:
            return owner, shown
        members = records(owner.model_fields[step].annotation)
        if not members:  # the rest are indices of entries, and kinds of values
            return owner, [*shown, *filter(str.isdigit, remaining_path)]
        if remaining_path[0].isdigit() and (index := remaining_path.popleft()) != "0":  # index into a list of records
            shown.append(index)
        if len(members) == 1:
            owner = members[0]
        else:
            tag = remaining_path.popleft() if remaining_path else None
            owner = next((member for member in members if member.model_fields["kind"].default == tag), None)
    return owner, shown


def records(annotation: Any) -> list[type[Part]]:
    """Return the record types that a field accepts: one for a record, several for a choice, none for a number."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return [annotation]
    if get_origin(annotation) is None:
        return []
    return [record for argument in get_args(annotation) for record in records(argument)]
