"""Operations of tests on the objects of a program."""

from __future__ import annotations

import operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OPERATIONS: dict[str, Callable[..., Any]] = {
    "__len__": len, "__iter__": iter, "__str__": str, "__repr__": repr, "__int__": int, "__float__": float,
    "__bool__": bool, "__abs__": abs, "__contains__": operator.contains, "__getitem__": operator.getitem,
    "__setitem__": operator.setitem, "__delitem__": operator.delitem, "__add__": operator.add,
    "__sub__": operator.sub, "__mul__": operator.mul, "__truediv__": operator.truediv,
    "__floordiv__": operator.floordiv, "__mod__": operator.mod, "__pow__": operator.pow, "__neg__": operator.neg,
    "__and__": operator.and_, "__or__": operator.or_, "__xor__": operator.xor, "__invert__": operator.invert,
    "__radd__": lambda one, other: other + one, "__rsub__": lambda one, other: other - one,
    "__rmul__": lambda one, other: other * one, "__eq__": operator.eq, "__ne__": operator.ne, "__lt__": operator.lt,
    "__le__": operator.le, "__gt__": operator.gt, "__ge__": operator.ge,
    "__enter__": lambda one: type(one).__enter__(one),
    "__exit__": lambda one, *_: type(one).__exit__(one, None, None, None),
    "__instancecheck__": lambda one, other: isinstance(other, one),
}  # fmt: skip
"""Operations of tests on the program's objects, by the names of Python's methods for them."""
