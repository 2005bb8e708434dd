"""benchmarks/decisions.py: regret and calibration, compared with figures by hand."""

import numpy as np
import pytest

from scalerl.reading.curves import Curve


@pytest.fixture
def bench(benchmark):
    return benchmark("decisions")


def cut(bench, repo, gain, **go_on):
    return bench.Cut("r", repo, 10, gain, go_on)


def test_regret_is_what_the_other_choice_would_have_won(bench):
    # 0.02 of gain pays for twice the compute
    assert cut(bench, "a", 0.05, rule=True).regret("rule") == 0.0
    assert cut(bench, "a", 0.05, rule=False).regret("rule") == pytest.approx(0.03)
    assert cut(bench, "a", -0.1, rule=True).regret("rule") == pytest.approx(0.12)
    assert cut(bench, "a", -0.1, rule=False).regret("rule") == 0.0


def test_repositories_weigh_equally(bench):
    found = [cut(bench, "a", 0.05, rule=False), cut(bench, "a", 0.03, rule=False), cut(bench, "b", 0.10, rule=False)]
    row = bench.regret_table(found)["rule"]
    # (0.03 + 0.01) / 2 = 0.02 in one, 0.08 in the other
    assert row["repositories"] == pytest.approx({"a": 0.02, "b": 0.08}) and row["regret"] == pytest.approx(0.05)
    assert row["low"] <= row["regret"] <= row["high"]


def test_the_gain_is_between_means_around_both_ends(bench):
    compute = np.arange(1.0, 25.0)
    curve = Curve(compute, compute / 100, bounds=(0.0, 0.5))
    # to 10: the points above 7.5 are 8, 9 and 10, mean 0.09; around 20 they are 18 to 22, mean 0.20; the range is 0.5
    assert bench.gain_after(curve, 10.0) == pytest.approx((0.20 - 0.09) / 0.5)
    assert bench.gain_after(curve, 14.0) is None  # nothing beyond 24.5
