"""Bytes of any value that can be sent to another process. Equal values of equal types have equal bytes everywhere.

Neither JSON nor pickle has both properties: JSON turns integer keys into text and tuples into lists, and a pickle
depends on which parts of a value are the same object and on the order of sets.
"""

from __future__ import annotations

import copyreg
import marshal
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

MARSHAL_VERSION = 2
"""Version of marshal: the last one whose bytes do not depend on which parts are the same object."""

_SCALARS = frozenset((type(None), bool, int, float, complex, str, bytes))


def exact_bytes(value: Any) -> bytes:
    """Return the bytes of a value. The order of dicts counts, that of sets does not.

    Values with the types of JSON and tuples take a few microseconds. Others are taken apart as pickle does it: dates,
    decimals, arrays, records.

    Raises:
        TypeError: A part cannot be sent to another process, such as an open file.
        RecursionError: It is nested too deeply, or contains itself.
    """
    return marshal.dumps(value if is_plain(value) else list(_parts(value)), MARSHAL_VERSION)


def is_plain(value: Any) -> bool:
    """Return whether marshal writes a value exactly; of an array it would write the memory, which may be pointers."""
    kind = type(value)
    if kind is dict:
        return all(map(is_plain, value.values())) and all(map(is_plain, value))
    return kind in _SCALARS or ((kind is list or kind is tuple) and all(map(is_plain, value)))


def _parts(value: Any) -> Iterator[Any]:
    """Yield the type and the parts of a value."""
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}"
    if kind in (set, frozenset):
        yield sorted(map(exact_bytes, value))
    elif kind is dict:
        yield [exact_bytes(part) for pair in value.items() for part in pair]
    elif kind in (list, tuple):
        yield [exact_bytes(part) for part in value]
    elif isinstance(value, type | FunctionType | BuiltinFunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
    else:
        reduce = copyreg.dispatch_table.get(kind)
        reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        if isinstance(reduced, str):  # the name of a global, such as Ellipsis
            yield reduced
            return
        yield [exact_bytes(part) for part in reduced[:3]]
        yield [[exact_bytes(item) for item in items or ()] for items in reduced[3:5]]
