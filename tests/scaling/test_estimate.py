import json
import math

import numpy as np
import pytest

from scalerl.reading.curves import Estimate
from scalerl.reading.curves.estimate import EstimateAt, as_json, short_number, summarize


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Estimate(0.6123, 0.0083, 0.598, 0.627), "0.6123 (0.5980 to 0.6270)"),
        (Estimate(0.61, 0.2, 0.33, 0.95), "0.61 (0.33 to 0.95)"),
        (Estimate(2542.3, 35.0, 2486.0, 2600.0), "2542 (2486 to 2600)"),
        (Estimate(3.1e14, 2e12, 3.0e14, 3.2e14), "3.1e+14 (3e+14 to 3.2e+14)"),
        (Estimate(0.00002, 0.004, -0.006, 0.006), "0.0000 (-0.0060 to 0.0060)"),
        (Estimate(0.2, 0.0, 0.2, 0.2), "0.2 (fixed)"),
    ],
)
def test_an_estimate_prints_two_digits_of_its_uncertainty(value, text):
    assert str(value) == text


def test_an_estimate_at_a_compute_prints_the_compute():
    assert str(EstimateAt(0.5, 0.01, 0.48, 0.52, 2000.0)) == "at 2000: 0.500 (0.480 to 0.520)"


def test_values_that_json_cannot_express_become_none():
    value = Estimate(0.375, math.nan, -math.inf, math.inf)
    assert json.loads(json.dumps(as_json(value))) == {"mean": 0.375, "sd": None, "low": None, "high": None}


def test_summary_of_the_numbers_1_to_101():
    value = summarize(np.arange(1.0, 102.0))
    assert (value.mean, value.low, value.high) == (51.0, pytest.approx(6.0), pytest.approx(96.0))


def test_numbers_in_sentences_use_words_for_infinity_and_nan():
    assert [short_number(v) for v in (12345.678, math.inf, math.nan)] == ["1.235e+04", "never", "unknown"]
