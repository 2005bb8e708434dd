"""Free memory is returned to the system when the heap has grown, not at every update."""

import ctypes
import platform
import subprocess
import sys

import pytest

from scalerl.training.learner.cpu import HeapTrim


def test_the_heap_is_trimmed_when_it_has_doubled_since_the_last_trim():
    sizes, trims = iter([300, 200, 390, 401, 250, 499, 501, 260]), []
    trim = HeapTrim(lambda: next(sizes), lambda: trims.append(True))
    done = []
    for _ in range(5):
        trim()
        done.append(len(trims))
    # 300 > 0: trimmed to 200; 390 < 400; 401 > 400: to 250; 499 < 500; 501 > 500: to 260
    assert done == [1, 1, 2, 2, 3]


@pytest.mark.slow
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc keeps it"
)
def test_a_trim_returns_free_memory_between_used_blocks():
    code = """
from scalerl.training.learner.cpu import HeapTrim, resident_bytes
blocks = [bytearray(100_000) for _ in range(2000)]  # 200 MB, below the size that is mapped on its own
kept = blocks[::10]
del blocks
before = resident_bytes()
HeapTrim()()
after = resident_bytes()
assert sum(map(len, kept)) == 20_000_000
print(before - after)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 100e6, done.stdout
