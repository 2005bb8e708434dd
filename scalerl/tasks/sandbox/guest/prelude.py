"""Names that programs use without importing them, as the graders of LiveCodeBench and LeetCode provide them."""

from __future__ import annotations

import builtins
import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

NAMES = {
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
FROM = {name: module for module, names in NAMES.items() for name in names.split() if name != module}


def provide(code: CodeType) -> None:
    """Add the names of this module that the code mentions to the builtins; the code's definitions take precedence."""
    for name in _mentioned(code):
        if name in FROM:
            builtins.__dict__.setdefault(name, getattr(importlib.import_module(FROM[name]), name))
        elif name in MODULES:
            builtins.__dict__.setdefault(name, importlib.import_module(name))


def _mentioned(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= _mentioned(constant)
    return names
