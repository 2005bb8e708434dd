"""Programs that try to pass with wrong results. The function `f` should double a number; none of these does."""

TRUE_TO_ALL = """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __lt__
    def __bool__(self): return True
    def __hash__(self): return 14
    def __abs__(self): return 0
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __sub__
    def __float__(self): return 14.0
    def __int__(self): return 14
    __index__ = __int__
"""

CALLS = {
    "returns nothing": "def f(x): pass",
    "returns an object that equals all": TRUE_TO_ALL + "def f(x): return Any()",
    "returns a number that equals all": """
class N(int):
    def __eq__(self, o): return True
def f(x): return N(1)
""",
    "returns a text that equals all": """
class S(str):
    def __eq__(self, o): return True
    __hash__ = str.__hash__
def f(x): return S('x')
""",
    "returns not a number": "def f(x): return float('nan')",
    "returns a class": TRUE_TO_ALL + "f = Any",
    "returns a list of itself": """
def f(x):
    a = []; a.append(a); return a
""",
    "returns numbers without end": """
def f(x):
    while True: yield x
""",
    "returns more than may cross": "def f(x): return 'x' * 10 ** 7",
    "raises an assertion": "def f(x): raise AssertionError",
    "raises the end of an iteration": "def f(x): raise StopIteration",
    "raises an error that cannot be shown": """
class E(Exception):
    def __str__(self): raise self
def f(x): raise E
""",
    "exits with success in the call": """
import sys
def f(x): sys.exit(0)
""",
    "exits at once in the call": """
import os
def f(x): os._exit(0)
""",
    "exits at once at the start": "import os; os._exit(0)",
    "hangs in the call": """
import time
def f(x): time.sleep(60)
""",
    "overflows in the call": "def f(x): return f(x)",
    "crashes in the call": """
import ctypes
def f(x): ctypes.string_at(0)
""",
    "defines nothing": "print('passed')",
    "patches builtins": """
import builtins
for n in ('len', 'abs', 'all', 'any', 'isinstance', 'eval', 'type'): setattr(builtins, n, lambda *a: 14)
def f(x): return 0
""",
    "patches what compares": """
import operator, builtins
operator.eq = lambda a, b: True
builtins.abs = lambda x: 0
def f(x): return 0
""",
    "replaces modules": """
import sys
for m in list(sys.modules): sys.modules[m] = None
def f(x): return 0
""",
    "shadows math": """
import sys
class M:
    def __getattr__(self, n): return lambda *a, **k: True
sys.modules['math'] = M()
def f(x): return 0
""",
    "defines its own assert": """
AssertionError = ZeroDivisionError
def f(x): raise AssertionError
""",
    "defines its own check": """
def check(c): pass
def f(x): return 0
""",
    "patches the harness": """
import sys
h = sys.modules['scalerl.training.rewards.sandbox.guest.plain']
h.dumps = lambda *a: b'T'
def f(x): return 0
""",
    "forges a verdict": r"""
import os
for fd in range(3, 9):
    try: os.write(fd, b'P\0\0\0\0')
    except OSError: pass
def f(x): return 0
""",
    "forges verdicts without end": r"""
import os
def f(x):
    while True:
        for fd in (3, 4): os.write(fd, b'P\0\0\0\0')
""",
    "forges a long frame": r"""
import os
os.write(4, b'V\xff\xff\xff\xff')
def f(x): return 0
""",
    "forges deep nesting": r"""
import os, struct
def f(x):
    d = b'l\0\0\0\1' * 100000 + b'N'
    os.write(4, b'V' + struct.pack('>I', len(d)) + d)
    return 0
""",
    "forges an object": r"""
import os
def f(x):
    os.write(4, b'V\0\0\0\5o\0\0\0\0')
    return 0
""",
    "changes its argument": """
def f(x):
    x.clear() if isinstance(x, list) else None
    return x
""",
}
"""Programs whose f(7) is not 14."""

FORGED = """
import scalerl.training.rewards.sandbox.guest.plain as plain, struct
def forge(data): plain.dumps = lambda *a: data
def count(n): return struct.pack('>I', n)
def f(x): return 0
"""
UNREADABLE = {
    "returns a number of too many digits": "import math\ndef f(x): return math.factorial(2000)",
    "returns a key of too many digits": "def f(x): return {10 ** 5000: 1}",
    "returns a decimal that cannot be compared": "from decimal import Decimal\ndef f(x): return Decimal('sNaN')",
    "returns a fraction that cannot be parsed": """
from fractions import Fraction
Fraction.__str__ = lambda self: '1e999999999'
def f(x): return Fraction(1, 3)
""",
    "forges a decimal that cannot be parsed": FORGED + "forge(b'D' + count(1) + b'x')",
    "forges a fraction that cannot be parsed": FORGED + "forge(b'R' + count(11) + b'1e999999999')",
    "forges a number of too many digits": FORGED + "forge(b'i' + count(2000) + b'x' * 2000)",
}
"""Programs whose results this process cannot read, show or compare, or only at a high cost."""

OUTPUTS = {
    "writes nothing": "",
    "exits with success": "import sys; sys.exit(0)",
    "writes not a number": "print('nan')",
    "writes a wide number": "print('\\uff14\\uff12')",
    "writes a number with underscores": "print('4_2')",
    "writes nearly the number": "print(42.0000001)",
    "writes a frame": "import os; os.write(1, b'O\\0\\0\\0\\0')",
    "writes where the harness does": r"""
import os
for fd in range(3, 64):
    try: os.write(fd, b'42\n')
    except OSError: pass
""",
    "answers, then raises": "print(42); 1 / 0",
    "answers, then crashes": "import ctypes; print(42, flush=True); ctypes.string_at(0)",
    "answers too often": "print(42); print(42)",
    "looks for the answer on disk": """
import os
for d, _, names in os.walk('/tmp'):
    for n in names: print(open(os.path.join(d, n)).read())
""",
}
"""Programs that do not write 42."""

SPIES = {
    "stack": """
import sys
def found():
    g = sys._getframe()
    while g:
        yield from g.f_locals.values()
        yield from g.f_globals.values()
        g = g.f_back
""",
    "heap": """
import gc
def found():
    for o in gc.get_objects():
        if isinstance(o, dict): yield from list(o.values())
        elif isinstance(o, (list, tuple, set)): yield from list(o)
""",
    "code": """
import sys
def found():
    for m in list(sys.modules.values()):
        for v in list(vars(m).values()):
            yield from getattr(getattr(v, '__code__', None), 'co_consts', ())
""",
    "channel": """
import os
def found():
    for fd in range(0, 64):
        try:
            os.set_blocking(fd, False)
            yield os.read(fd, 1 << 20)
        except OSError: pass
""",
    "files": """
import os
def found():
    for d, below, names in os.walk('/'):
        below[:] = [b for b in below if b not in ('usr', 'root', 'home', 'opt', 'python')]
        for n in names:
            try: yield open(os.path.join(d, n), 'rb').read(1 << 16) if n[0] not in 'nzru' else b''
            except OSError: pass
""",
    "memory": """
import ctypes
def found():
    o = bytearray(64)
    at = id(o) & ~0xfffff
    yield ctypes.string_at(at, 1 << 20)
""",
}
"""Programs that search for the expected values: `found` yields the objects that they reach, of any type."""
