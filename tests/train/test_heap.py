"""Free memory is returned to the system when the heap has grown, not at every update."""

import ctypes
import platform
import subprocess
import sys

import pytest


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
