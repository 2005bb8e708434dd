"""Compilation of code in a sandbox, and modules for it with names that programs use without importing them.

The graders of LiveCodeBench and LeetCode provide these names.
"""

from __future__ import annotations

import builtins
import importlib
import io
import os
import sys
from _weakref import ref  # weakref would have to be loaded

from scalerl.training.rewards.sandbox.guest import jail, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType
    from typing import Any

PRELUDE_NAMES = {
    "typing": "List Dict Tuple Set FrozenSet Optional Union Any Callable Iterable Iterator Generator Sequence Deque "
    "DefaultDict Mapping NamedTuple TypeVar Generic",
    "collections": "defaultdict Counter deque OrderedDict namedtuple ChainMap",
    "heapq": "heapify heappush heappop heappushpop heapreplace nlargest nsmallest",
    "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
    "math": "inf pi gcd lcm sqrt isqrt ceil floor log log2 log10 comb perm factorial prod hypot",
    "itertools": "accumulate chain combinations combinations_with_replacement count cycle groupby islice pairwise "
    "permutations product repeat starmap takewhile dropwhile zip_longest",
    "functools": "cache lru_cache reduce cmp_to_key partial cached_property",
    "operator": "itemgetter attrgetter xor or_ and_ mul add",
    "string": "ascii_lowercase ascii_uppercase ascii_letters digits punctuation",
    "copy": "deepcopy",
    "random": "randint choice shuffle",
    "datetime": "timedelta",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "io": "StringIO BytesIO",
}
MODULE_NAMES = (
    "math re sys os heapq bisect collections itertools functools operator string random copy json time datetime "
    "statistics typing io decimal fractions queue"
)
MODULES = frozenset(MODULE_NAMES.split())
FROM = {name: module for module, names in PRELUDE_NAMES.items() for name in names.split() if name != module}


CLASSES = {
    "TreeNode": ("val", "left", "right"),
    "ListNode": ("val", "next"),
    "Node": ("val", "children", "next", "random", "left", "right"),
}
"""Classes of LeetCode's problems, and their attributes."""


def node_class(name: str) -> type:
    """Return a class of LeetCode's prelude."""
    attributes = CLASSES[name]

    def create(self: object, *values: object, **named: object) -> None:
        for attribute, value in zip(attributes, values):  # noqa: B905  a missing value is the default
            setattr(self, attribute, value)
        self.__dict__.update(named)

    return type(name, (), {"val": 0, **dict.fromkeys(attributes[1:]), "__init__": create})


def provide(code: CodeType) -> None:
    """Add the names of this module that the code mentions to the builtins; the code's definitions take precedence."""
    for name in _mentioned(code):
        if name in FROM:
            builtins.__dict__.setdefault(name, getattr(importlib.import_module(FROM[name]), name))
        elif name in CLASSES:
            builtins.__dict__.setdefault(name, node_class(name))
        elif name in MODULES:
            builtins.__dict__.setdefault(name, importlib.import_module(name))


def _mentioned(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= _mentioned(constant)
    return names


RECURSION = 50_000
"""Recursion limit of a program, the same as LiveCodeBench's."""


def error_line(error: BaseException) -> str:
    """Return an error in one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def caught(function: Callable[..., object], *arguments: object) -> BaseException | None:
    """Call a function and return what it raised: code in a sandbox may raise anything."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    return None


def compile_program(channel: jail.Channel, source: str) -> CodeType:
    """Return a program's compiled code. If it cannot be compiled, send the reason and end the process."""
    try:
        return compile(source, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        channel.send(b"X", plain.dumps(error_line(error)))
        os._exit(0)


def fresh_module(name: str, *codes: CodeType) -> ModuleType:
    """Return a module for code to run in, with the names that programs use without importing them."""
    module = type(sys)(name)
    sys.modules[name] = module
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # their module `site` is not loaded
    sys.setrecursionlimit(RECURSION)
    sys.set_int_max_str_digits(0)  # the time limit is enough
    for code in codes:
        provide(code)
    return module


STREAMS = {
    path: number
    for number, name in enumerate(("stdin", "stdout", "stderr"))
    for path in (f"/dev/{name}", f"/dev/fd/{number}", f"/proc/self/fd/{number}")
}
"""Paths of the standard streams, which a sandbox has only as open files."""


def with_streams() -> Callable[[], None]:
    """Let `open` and `os.open` open the paths of the standard streams; return a function that flushes these files."""
    real, real_of_os = io.open, os.open
    opened: list[ref[Any]] = []  # a file that the program forgets is closed, and so written, at once

    def number_of(path: object) -> int | None:
        return STREAMS.get(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else None

    def open(file: Any, *words: Any, **named: Any) -> Any:
        number = number_of(file)
        stream = real(file if number is None else os.dup(number), *words, **named)
        if number is not None:
            opened.append(ref(stream))
        return stream

    def open_of_os(path: Any, *words: Any, **named: Any) -> int:
        number = number_of(path)
        return real_of_os(path, *words, **named) if number is None else os.dup(number)

    def finish() -> None:
        for stream in filter(None, (known() for known in opened)):
            if not stream.closed:
                stream.flush()

    builtins.open = io.open = open
    os.open = open_of_os
    return finish
