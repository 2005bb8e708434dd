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
    "__radd__": lambda value, other: other + value, "__rsub__": lambda value, other: other - value,
    "__rmul__": lambda value, other: other * value, "__eq__": operator.eq, "__ne__": operator.ne, "__lt__": operator.lt,
    "__le__": operator.le, "__gt__": operator.gt, "__ge__": operator.ge,
    "__enter__": lambda value: type(value).__enter__(value),
    "__exit__": lambda value, *_: type(value).__exit__(value, None, None, None),
    "__instancecheck__": lambda value, other: isinstance(other, value),
}  # fmt: skip
"""Operations of tests on the program's objects, by the names of Python's methods for them."""
