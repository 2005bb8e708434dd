"""What a wrong call from Python gets: one line with the call that works, for functions and for names of records."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from scalerl.core.errors import UserError, nearest

P = ParamSpec("P")
R = TypeVar("R")


class CallError(UserError):
    """A function was called with other arguments than it has; the message has its signature."""


class NoSuchName(UserError, AttributeError):
    """A record or module has no attribute of this name; the message has the call that works."""


def checked(
    options: Iterable[str] | None = (), habits: Mapping[str, str] | None = None, also: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: a call with other arguments than the function has is a `CallError` with its signature.

    Args:
        options: Keyword arguments that the function takes as `**`; None: any.
        habits: What to write instead, by the keywords of other packages; `{value}` stands for the argument.
        also: What else to say.
    """
    hints = habits or {}

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        named = {name for name, parameter in signature.parameters.items() if parameter.kind is not VAR_KEYWORD}
        allowed = [*named, *(name for name in options or () if name not in named)]
        title = function.__qualname__.removesuffix(".__init__")

        def sample() -> str:
            more = ", ".join(name for name in allowed if name not in named)
            texts = [f"it is {text_of(title, signature)}", f"which may have {more}" if more else "", also]
            return "; ".join(filter(None, texts))

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            unknown: str | None = next((name for name in kwargs if name not in allowed and options is not None), None)
            if unknown is not None and unknown in hints:
                value = dict(kwargs)[unknown]
                shown = repr(value) if isinstance(value, str | int | float) else "..."
                raise CallError(f"{title} has no option {unknown!r}: write {hints[unknown].format(value=shown)}")
            if unknown is not None:
                raise CallError(f"{title} has no option {unknown!r}{nearest(unknown, allowed)}; {sample()}")
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise CallError(f"{title}: {error}; {sample()}") from None
            return function(*args, **kwargs)

        return call

    return decorated


VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


def text_of(title: str, signature: inspect.Signature) -> str:
    """Return a signature without types: `forecast(data, at=('2x', '4x'), *, mean_of=1)`."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name != "self" and parameter.kind is not VAR_KEYWORD
    ]
    return f"{title.rpartition('.')[2]}{inspect.Signature(parameters)}"


def missing(owner: str, name: str, habits: Mapping[str, str], allowed: Iterable[str]) -> NoSuchName:
    """Return the error for an attribute that does not exist.

    Args:
        owner: Who lacks it, in text.
        name: The attribute.
        habits: What to write instead, by names that other packages use, separated by spaces.
        allowed: The attributes that exist.
    """
    names = sorted(allowed)
    for words, hint in habits.items():
        if name in words.split():
            return NoSuchName(f"{owner} has no {name!r}: {hint}")
    return NoSuchName(f"{owner} has no {name!r}{nearest(name, names)}; it has {', '.join(names)}")


NUMBER_ARGUMENTS = ("target", "min_gain", "price", "level", "r0", "exclude_below", "devices", "answers", "mean_of",
                    "budget", "fractions")  # fmt: skip
TEXT_ARGUMENTS = ("compute", "task", "source", "run", "metric")
PATH_ARGUMENTS = ("output", "figures")
"""Names of arguments that are numbers, text and paths, in all public functions."""


def check_values(values: Mapping[str, Any]) -> None:
    """Check the kinds of arguments by name; None is always allowed.

    Raises:
        CallError: An argument has another kind.
    """
    for name, value in values.items():
        if value is None:
            continue
        if name in NUMBER_ARGUMENTS and (isinstance(value, bool) or not isinstance(value, Real)):
            raise CallError(f"{name} must be a number; got {value!r:.60}")
        if name in TEXT_ARGUMENTS and not isinstance(value, str):
            raise CallError(f"{name} must be text; got {value!r:.60}")
        if name in PATH_ARGUMENTS and not isinstance(value, str | os.PathLike):
            raise CallError(f"{name} must be a path; got {value!r:.60}")
        pair = list(value) if isinstance(value, list | tuple) or hasattr(value, "__array__") else []
        if name == "bounds" and not (len(pair) == 2 and all(isinstance(bound, Real) for bound in pair)):
            raise CallError(f"bounds must be two numbers, such as (0, 100); got {value!r:.60}")
        if name == "names" and not (len(pair) == 2 and all(isinstance(side, str) for side in pair)):
            raise CallError(f"names must be two names, such as ('grpo', 'scalerl'); got {value!r:.60}")
        if name == "columns" and not (
            isinstance(value, Mapping) and all(isinstance(cell, str) for item in value.items() for cell in item)
        ):
            raise CallError(f"columns must be names by role, such as {{'step': 'iteration'}}; got {value!r:.60}")
