"""Serialization of the values that pass between a program and its judge.

A program's objects never leave its process. The receiver builds the values from exact built-in types, so a program's
`__eq__`, subclass of str or patched builtin has no effect there. JSON is not used because it lacks tuples, sets and
bytes, and importing it costs each sandbox 9 ms.
"""

from __future__ import annotations

import struct
from importlib import import_module  # at the first value of a type, because its module costs each sandbox time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would cost each sandbox 10 ms
    from collections.abc import Callable
    from typing import Any

COUNT = struct.Struct(">I")
DOUBLE = struct.Struct(">d")
MOST_ITEMS = 1_000_000
"""Largest number of items read from an iterator."""
JSON = b"NTFfiubld"
"""Tags of values that the process outside reads: those of JSON, and bytes."""
CONTAINERS: tuple[tuple[Any, bytes], ...] = ((list, b"l"), (tuple, b"t"), (set, b"s"), (frozenset, b"z"))


class NotPlain(ValueError):
    """The bytes from the other side are not a valid value."""


def dumps(value: Any, keep: Callable[[Any], int] | None = None) -> bytes:
    """Return a value as bytes: a tag, then a length or a count, then the rest.

    Args:
        value: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, range, deque, Decimal,
            Fraction, an iterator (its items), or a nested value of these types. Subclasses become their base types.
        keep: Function that stores a value of another type and returns its number; None: such a value is an error.

    Raises:
        TypeError: The value is not plain data, and `keep` is None.
        RecursionError: The value is nested too deeply, or contains itself.
    """
    parts: list[bytes] = []
    _write(value, parts.append, keep)
    return b"".join(parts)


def loads(data: bytes, remote: Callable[[int], Any] | None = None) -> Any:
    """Return the value that `dumps` wrote.

    Args:
        data: Untrusted bytes from the other side.
        remote: Function that creates a proxy for an object kept on the other side. None: only values of JSON and bytes
            are allowed. The process outside reads no others: a fraction can take hours to parse, and a program can
            choose numbers whose hashes collide.

    Raises:
        NotPlain: The bytes are not a valid value, or contain one that needs `remote`.
        TypeError: A set or dict has a key that cannot be hashed.
        RecursionError: The value is nested too deeply.
    """
    try:
        value, end = _read(data, 0, remote)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise NotPlain(f"a broken value ({error})") from None
    if end != len(data):
        raise NotPlain("bytes after the end of a value")
    return value


def as_json(value: Any) -> Any:
    """Return a value as JSON would hold it: tuples become lists, and the keys of a dict text.

    Raises:
        TypeError: JSON has no such value.
    """
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if type(value).__name__ in ("Decimal", "Fraction"):
        for kind in (int, float):
            if kind(value) == value:
                return kind(value)
    raise TypeError(f"the value {str(value)[:80]} of type {type(value).__name__} is not JSON")


def _write(value: Any, out: Callable[[bytes], Any], keep: Callable[[Any], int] | None) -> None:
    if value is None or value is True or value is False:
        out(b"N" if value is None else b"T" if value else b"F")
    elif isinstance(value, int):
        number = int.__int__(value)
        _blob(b"i", number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True), out)
    elif isinstance(value, float):
        out(b"f" + DOUBLE.pack(float.__float__(value)))
    elif isinstance(value, str):
        _blob(b"u", str.encode(value, "utf-8", "surrogatepass"), out)
    elif isinstance(value, bytes | bytearray):
        _blob(b"b", bytes(value), out)
    elif isinstance(value, dict):
        _items(b"d", [part for pair in dict.items(value) for part in pair], out, keep)
    else:
        for kind, tag in CONTAINERS:
            if isinstance(value, kind):
                return _items(tag, list(kind.__iter__(value)), out, keep)
        _write_rare(value, out, keep)


def _write_rare(value: Any, out: Callable[[bytes], Any], keep: Callable[[Any], int] | None) -> None:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__name__}"
    if name in ("decimal.Decimal", "fractions.Fraction"):
        _blob(b"D" if name == "decimal.Decimal" else b"R", str(value).encode(), out)
    elif name == "collections.deque":
        _items(b"q", list(value), out, keep)
    elif kind is complex:
        _items(b"c", [value.real, value.imag], out, None)
    elif kind is range:
        _items(b"r", [value.start, value.stop, value.step], out, None)
    elif hasattr(kind, "__next__") or kind in (type({}.keys()), type({}.values()), type({}.items())):
        _items(b"n", [item for item, _ in zip(value, range(MOST_ITEMS))], out, keep)  # noqa: B905
    elif keep is None:
        raise TypeError(f"a {kind.__name__} is not plain data")
    else:
        out(b"o" + COUNT.pack(keep(value)))


def _blob(tag: bytes, data: bytes, out: Callable[[bytes], Any]) -> None:
    out(tag + COUNT.pack(len(data)) + data)


def _items(tag: bytes, items: list[Any], out: Callable[[bytes], Any], keep: Callable[[Any], int] | None) -> None:
    out(tag + COUNT.pack(len(items)))
    for item in items:
        _write(item, out, keep)


def _read(data: bytes, at: int, remote: Callable[[int], Any] | None) -> tuple[Any, int]:
    """Return the value that begins at a position, and the position of its end."""
    tag = data[at : at + 1]
    if remote is None and tag not in JSON:
        raise NotPlain("a value that JSON does not have")
    if tag in CONSTANTS:
        return CONSTANTS[tag], at + 1
    if tag == b"f":
        return DOUBLE.unpack_from(data, at + 1)[0], at + 9
    (count,) = COUNT.unpack_from(data, at + 1)
    at += 5
    if tag == b"o" and remote is not None:
        return remote(count), at
    if tag in BLOBS:
        if at + count > len(data):
            raise NotPlain("a value that is cut off")
        return BLOBS[tag](data[at : at + count]), at + count
    make = MADE_OF_ITEMS[tag]
    items = []
    for _ in range(count):
        item, at = _read(data, at, remote)
        items.append(item)
    if remote is None and tag == b"d" and any(type(key) is not str for key in items[::2]):
        raise NotPlain("a key that is not text")
    return make(items), at


CONSTANTS = {b"N": None, b"T": True, b"F": False}
BLOBS: dict[bytes, Callable[[bytes], Any]] = {
    b"i": lambda data: int.from_bytes(data, "big", signed=True),
    b"u": lambda data: data.decode("utf-8", "surrogatepass"),
    b"b": bytes,
    b"D": lambda text: import_module("decimal").Decimal(text.decode()),
    b"R": lambda text: import_module("fractions").Fraction(text.decode()),
}
MADE_OF_ITEMS: dict[bytes, Callable[[list[Any]], Any]] = {
    b"l": list,
    b"t": tuple,
    b"s": set,
    b"z": frozenset,
    b"d": lambda items: dict(zip(items[::2], items[1::2])),  # noqa: B905
    b"q": lambda items: import_module("collections").deque(items),
    b"n": iter,
    b"c": lambda parts: complex(*parts),
    b"r": lambda parts: range(*parts),
}
