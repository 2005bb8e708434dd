from dataclasses import replace

import numpy as np
import pytest

from scalerl.reading.curves.law import Draws, joined_draws, plain_draws

ONE = np.ones(1)


def plain(asymptote=0.6, efficiency=2.0, midpoint=10.0, initial=0.1):
    return plain_draws(
        asymptote=asymptote * ONE, efficiency=efficiency * ONE, midpoint=midpoint * ONE, initial=initial * ONE,
        autocorrelation=0 * ONE, noise_sd=0.01 * ONE, most=1.0,
    )  # fmt: skip


def twice():
    """Start 0.1, a first rise of 0.2 centered at 10, a second of 0.3 centered at 1000; both with B = 2."""
    second = {"second_midpoint": 1000.0 * ONE, "second_efficiency": 2.0 * ONE, "second_gain": 0.3 * ONE}
    return replace(plain(asymptote=0.6), plateau=0.3 * ONE, **second)


def test_a_plain_draw_is_the_law():
    # at 3 C_mid nine tenths of the climb of 0.5 are done
    assert plain().levels(np.array([0.0, 10.0, 30.0]))[:, 0] == pytest.approx([0.1, 0.35, 0.55])


def test_95_percent_of_the_climb_takes_19_midpoints_for_b_1_and_its_root_for_b_2():
    assert plain(efficiency=1.0).compute_done() == pytest.approx(190.0)
    assert plain(efficiency=2.0).compute_done() == pytest.approx(10 * np.sqrt(19))


def test_a_late_start_shifts_compute():
    late = replace(plain(midpoint=110.0), delay=100.0 * ONE)
    # the midpoint is that of the whole run, so 10 after the start; 30 after it nine tenths are done
    assert late.levels(np.array([50.0, 100.0, 110.0, 130.0]))[:, 0] == pytest.approx([0.1, 0.1, 0.35, 0.55])
    assert late.compute_for(np.array([0.55])) == pytest.approx(130.0)


def test_a_second_rise_adds_to_the_first():
    # at 1000 the first rise is done except for 1e-4, the second half done
    assert twice().levels(np.array([1000.0]))[0, 0] == pytest.approx(0.3 - 0.2e-4 + 0.15, abs=1e-7)


def test_the_compute_of_a_level_on_two_rises_is_found_by_bisection():
    draws = twice()
    for target in (0.15, 0.29, 0.31, 0.55):
        (compute,) = draws.compute_for(np.array([target]))
        assert draws.levels(np.array([compute]))[0, 0] == pytest.approx(target, abs=1e-9)


def test_unreachable_levels_need_infinite_compute_and_initial_levels_none():
    for draws in (plain(), twice()):
        assert draws.compute_for(np.array([0.61])).tolist() == [np.inf]
        assert draws.compute_for(np.array([0.05])).tolist() == [0.0]


def test_no_level_exceeds_the_metrics_bound():
    bounded = replace(twice(), most=0.5)
    assert bounded.levels(np.array([1e9])).tolist() == [[0.5]]
    assert bounded.compute_for(np.array([0.55])).tolist() == [np.inf]


def test_draws_can_be_joined_and_thinned():
    both = joined_draws([plain(asymptote=0.5), plain(asymptote=0.6), plain(asymptote=0.7)])
    assert isinstance(both, Draws)
    assert both.evenly(2).asymptote.tolist() == [0.5, 0.7]
