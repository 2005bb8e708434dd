import subprocess
import sys

import numpy as np

from scalerl.core.rng import stream_key, uniforms


def test_a_key_is_equal_in_every_process():
    code = "from scalerl.core.rng import stream_key; print(stream_key(0, 'train', 'ab', 1, 2))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) == stream_key(0, "train", "ab", 1, 2)


def test_splitmix64_reference_values():
    # the published first outputs of splitmix64 seeded with 1234567
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    drawn = uniforms(np.full(3, 1234567, dtype=np.uint64), np.arange(3))
    np.testing.assert_array_equal(drawn, [(z >> 11) * 2.0**-53 for z in expected])


def test_numbers_are_uniform_and_uncorrelated_along_a_stream():
    numbers = uniforms(np.full(20_000, stream_key("x"), dtype=np.uint64), np.arange(20_000))
    assert abs(numbers.mean() - 0.5) < 0.01 and abs(numbers.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02
