import numpy as np
import pytest

from scalerl.scaling.linear import eliminate, last_coefficient, log_evidence, normal_of_t, product, t_of_normal


def whitened(x, phi):
    return np.concatenate([[x[0] * np.sqrt(1 - phi**2)], x[1:] - phi * x[:-1]])


def test_the_product_is_that_of_the_whitened_columns():
    x, z, phi = np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0, 0.5]), 0.5
    # whitened: x -> (0.866, 1.5, 3), z -> (2.598, -0.5, 0): 2.25 - 0.75 + 0
    assert product(x, z, np.array(phi)) == pytest.approx(1.5)
    assert product(x, z, np.array(phi)) == pytest.approx(whitened(x, phi) @ whitened(z, phi))


def test_elimination_gives_the_least_squares_line():
    # y = 1 + 2 x except for one point that is 0.3 off the line; classical formulas by hand
    x, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 3.0, 5.3, 7.0])
    solved = eliminate([np.ones(4), x], y, np.array(0.0), floor=0.0)
    last = last_coefficient(solved, -1e9, 1e9)
    assert last.center == pytest.approx(2.03)
    assert solved.rss == pytest.approx(0.063)
    assert solved.dof == 2


def test_elimination_agrees_with_numpy_on_whitened_data():
    rng = np.random.default_rng(3)
    columns, y, phi = list(rng.standard_normal((3, 30))), rng.standard_normal(30), 0.6
    solved = eliminate(columns, y, np.array(phi), floor=0.0)
    design = np.stack([whitened(x, phi) for x in columns], axis=1)
    expected, rss, _, _ = np.linalg.lstsq(design, whitened(y, phi), rcond=None)
    assert last_coefficient(solved, -1e9, 1e9).center == pytest.approx(expected[-1])
    assert solved.rss == pytest.approx(rss[0])
    assert np.prod(solved.pivots) == pytest.approx(np.linalg.det(design.T @ design))


@pytest.mark.parametrize("dof", [3, 10, 39])
def test_normal_of_t_keeps_the_probability(dof):
    from scipy.stats import norm
    from scipy.stats import t as student

    t = np.linspace(-6, 6, 25)
    assert np.abs(norm.cdf(normal_of_t(t, dof)) - student.cdf(t, dof)).max() < 2e-3
    assert t_of_normal(normal_of_t(t, dof), dof) == pytest.approx(t)


def test_limits_far_in_the_tail_keep_their_probability():
    # a coefficient near 0 with sd about 0.1, cut to [0.8, 0.9]: some 8 sd out, where 1 - cdf would be 0
    y = np.array([0.1, -0.1] * 20)
    solved = eliminate([np.full(40, 1.0)], y, np.array(0.0), floor=0.0)
    upper, lower = last_coefficient(solved, 0.1, 0.2), last_coefficient(solved, -0.2, -0.1)
    assert upper.mass == pytest.approx(float(lower.mass), rel=1e-9)
    assert 1e-9 < upper.mass < 1e-5


def test_evidence_ratio_of_two_noise_levels_by_hand():
    # one column of ones, phi 0: evidence ~ N^(-1/2) RSS^(-(N-1)/2); RSS 4 times larger, N = 5: 4^-2 = 1/16
    small, large = np.array([1.0, -1.0, 1.0, -1.0, 0.0]), np.array([2.0, -2.0, 2.0, -2.0, 0.0])
    value = []
    for y in (small, large):
        solved = eliminate([np.ones(5)], y, np.array(0.0), floor=0.0)
        value.append(log_evidence(solved, np.array(0.0), last_coefficient(solved, -1e9, 1e9)))
    assert value[0] - value[1] == pytest.approx(np.log(16.0))
