import numpy as np
import pytest
from simulated_runs import run

from scalerl.scaling import Curve, Prior, sigmoid
from scalerl.scaling.curve_families import CREEP, LATE_START, LAW, RISE_SCALE, SECOND_RISE, rarely_large
from scalerl.scaling.posterior import explore, standardized, suspicion

# compute 0, a quarter, a half and the whole of the run
LOG_C = np.log(np.array([1e-300, 0.25, 0.5, 1.0]))


def place(*values):
    return [np.asarray(value, dtype=float) for value in values]


def test_the_law_has_half_of_its_climb_done_at_the_midpoint():
    first = LAW.columns(LOG_C, place(np.log(0.5), np.log(2.0))).first
    # at half of C_mid 1 / (1 + 2^2), at twice C_mid 1 / (1 + 2^-2)
    assert first == pytest.approx([0.0, 0.2, 0.5, 0.8])


def test_a_late_start_counts_compute_from_the_delay():
    # a quarter after a delay of a quarter is one midpoint of a quarter
    first = LATE_START.columns(LOG_C, place(np.log(0.25), np.log(1.0), 0.25)).first
    assert first == pytest.approx([0.0, 0.0, 0.5, 0.75])


def test_a_second_rise_that_is_not_visible_yet_has_a_zero_column():
    visible = SECOND_RISE.columns(LOG_C, place(0.0, 0.0, np.log(1.0), np.log(2.0))).second
    hidden = SECOND_RISE.columns(LOG_C, place(0.0, 0.0, np.log(4.0), np.log(4.0))).second
    assert visible == pytest.approx([0.0, 1 / 17, 0.2, 0.5])
    # at a midpoint of four times the run and efficiency 4, 1 / (1 + 4^4) = 0.4% of it would be complete
    assert hidden.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_the_coefficient_of_a_creep_is_its_rise_so_far():
    second = CREEP.columns(LOG_C, place(0.0, 0.0)).second
    assert second[-1] == pytest.approx(1.0)
    assert second == pytest.approx([0.0, 0.25, 0.5, 1.0], abs=0.01)  # a straight line, nearly
    bends = CREEP.bends(place([0.0], [0.0]), np.array([0.02]))
    # about ten times as much at ten times the compute, less the bend that bounds it: 0.02 * 201 * 10 / 210
    at_ten = bends.second_gain / (1 + bends.second_midpoint / 10)
    assert at_ten == pytest.approx([0.02 * 2010 / 210])


def test_the_density_of_second_rises_averages_to_one_over_the_uniform_one():
    grid = (np.arange(10_000) + 0.5) / 10_000 * SECOND_RISE.most_second
    assert rarely_large(grid).mean() == pytest.approx(1.0, abs=1e-6)
    assert rarely_large(np.array([0.0]))[0] / rarely_large(np.array([RISE_SCALE]))[0] == pytest.approx(np.e)


def test_the_quick_test_detects_departures_from_the_law():
    compute = np.linspace(0, 100, 41)
    noise = 0.003 * np.random.default_rng(0).standard_normal(41)
    twice = sigmoid(compute, 0.35, 2.0, 8.0, 0.1) + sigmoid(compute, 0.25, 5.0, 70.0, 0.0) + noise
    values = {}
    for name, curve in {"law": run(), "twice": Curve(compute, twice)}.items():
        problem = standardized(curve, None, Prior())
        values[name] = suspicion(problem, explore(problem, LAW))
    assert values["law"] < 3 < 6 < values["twice"]
