from dataclasses import replace

import numpy as np
import pytest
from simulated_runs import run

from scalerl.reading.curves import Curve, fit
from scalerl.reading.curves.families import CREEP, FAST_END, LATE_START, LAW, RISE_SCALE, SECOND_RISE, rarely_large
from scalerl.reading.curves.law import plain_draws

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


def test_a_fast_end_has_the_midpoint_and_the_slope_of_the_law_there_and_ends_exponentially():
    # u = 1 - 2^-(C / C_mid)^q with q = B / (2 ln 2): at C_mid a half, at twice C_mid with q = 1 three quarters
    first = FAST_END.columns(LOG_C, place(np.log(0.5), np.log(2 * np.log(2.0)))).first
    assert first == pytest.approx([0.0, 1 - 2**-0.5, 0.5, 0.75])
    log_c, step = np.log(0.5) + np.array([-1e-4, 1e-4]), 2e-4
    for family in (LAW, FAST_END):
        u = family.columns(log_c, place(np.log(0.5), np.log(1.7))).first
        assert np.diff(u) / step == pytest.approx(1.7 / 4, rel=1e-4)


def test_draws_with_a_fast_end_return_their_levels_and_the_compute_for_each():
    one = np.ones(3)
    draws = plain_draws(
        asymptote=0.6 * one, efficiency=np.array([1.0, 2.0, 2.0]), midpoint=50.0 * one, initial=0.2 * one,
        autocorrelation=0 * one, noise_sd=0.01 * one, most=1.0,
    )  # fmt: skip
    draws = replace(draws, fast=np.array([1.0, 1.0, 0.0]))
    compute = draws.compute_for(np.full(3, 0.5))
    assert np.diag(draws.levels(compute)) == pytest.approx([0.5, 0.5, 0.5])
    # three quarters of the climb: (C / 50)^(B / 1.386) = 2, and (C / 50)^2 = 3 for the law
    assert compute == pytest.approx([50 * 2**1.3863, 50 * 2**0.6931, 50 * 3**0.5], rel=1e-3)
    assert draws.compute_for(np.array([0.2, 0.6, 0.7])).tolist() == [0.0, np.inf, np.inf]


def exponential(seed, tau=0.25, noise=0.004):
    """Return a run to 100 with R0 0.2 and A 0.6 whose climb ends exponentially."""
    compute = np.linspace(0, 100, 41)
    level = 0.2 + 0.4 * -np.expm1(-compute / (100 * tau))
    return Curve(compute, level + noise * np.random.default_rng(seed).standard_normal(41))


def test_a_likely_fast_end_is_the_reason_and_its_number_is_a_key():
    fitted = fit(exponential(3, 0.2, 0.002))
    assert fitted.posterior.fast_end > 0.5 and not fitted.identified
    assert fitted.to_dict()["fast_end"] == fitted.posterior.fast_end
    assert fit(run()).posterior.fast_end < 1e-3 and fit(run()).identified
