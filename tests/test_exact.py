"""Bytes of values: equal for equal values of equal types, in every process, and different for all others."""

import collections
import datetime
import decimal
import enum
import fractions
import os
import pathlib
import re
import subprocess
import sys
import threading
import uuid
import zoneinfo
from dataclasses import dataclass

import numpy as np
import pytest

from scalerl.core.exact import exact_bytes, is_plain


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Record:
    a: int
    b: set


DAY = datetime.datetime(2020, 1, 1)
DIFFERENT = [
    None, True, 1, 1.0, "1", b"1", bytearray(b"1"), 1 + 0j, Level.LOW, np.int64(1), np.float32(1), np.float64(1),
    np.str_("1"), (1,), [1], {1}, frozenset({1}), {1: 2}, {"1": 2}, {True: 2}, {1: (2,)}, {1: [2]}, {2: 1},
    {"a": 1, "b": 2}, {"b": 2, "a": 1}, collections.OrderedDict(a=1, b=2), collections.Counter("aab"), 0.0, -0.0,
    float("nan"), 10**40, DAY, DAY.date(), DAY.time(), DAY - datetime.datetime(2019, 1, 1),
    DAY.replace(tzinfo=datetime.UTC), DAY.replace(tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), DAY.replace(fold=1),
    decimal.Decimal("1.0"), decimal.Decimal("1.00"), fractions.Fraction(1), uuid.UUID(int=1), Color.RED,
    Record(1, {"a", "b"}), Record(1, {"a", "c"}), pathlib.PurePosixPath("1"), re.compile("1"), range(1), slice(1),
    len, datetime.date, ..., np.array([1, 2]), np.array([[1, 2]]), np.array([1.0, 2.0]), np.array([1, 2], np.int32),
    np.array(["a", "b"], object), np.array(["a", "c"], object), {"a": np.array([1])}, {"a": np.array([[1]])},
    {"a", "b", "c", "d"}, {("a", 1), DAY}, {"a": [{"b": DAY}]}, {"a": [{"b": DAY.date()}]}, "é", "e\u0301", "\ud800",
]  # fmt: skip


def test_different_values_have_different_bytes():
    assert len(set(map(exact_bytes, DIFFERENT))) == len(DIFFERENT)


def test_equal_values_have_equal_bytes_whatever_their_parts_share():
    day, text = DAY.date(), "".join(["a", "b"])
    shared = {"x": [day, day], "y": (text, text), "ab": {"b", "a"}}
    separate = {"x": [DAY.date(), datetime.date(2020, 1, 1)], "y": ("ab", "a" + "b"), "ab": {"a", "b"}}
    assert exact_bytes(shared) == exact_bytes(separate) and not is_plain(shared)
    plain = [{"a": (1, "x", None)}, {"a": ({}, [2.5, b"1"])}]
    assert all(is_plain(value) for value in plain) and not any(is_plain([value]) for value in ({1}, np.float64(1)))


def test_bytes_are_the_same_in_every_process():
    code = "import test_exact as t, hashlib; print(hashlib.md5(b''.join(map(t.exact_bytes, t.DIFFERENT))).hexdigest())"
    places = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    texts = {
        subprocess.check_output(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": places}
        )
        for seed in "12"
    }
    assert len(texts) == 1


def test_what_cannot_be_sent_and_what_contains_itself_raises():
    for value in (threading.Lock(), (n for n in range(3)), sys.stdout):
        with pytest.raises(TypeError):
            exact_bytes({"a": value})
    endless = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        exact_bytes(endless)
