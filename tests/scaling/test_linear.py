import numpy as np
import pytest

from scalerl.reading.curves.linear import (
    combined,
    eliminate,
    gram,
    last_coefficient,
    log_evidence,
    normal_of_t,
    t_of_normal,
)


def whitened(x, phi):
    return np.concatenate([[x[0] * np.sqrt(1 - phi**2)], x[1:] - phi * x[:-1]])


def solve(columns, y, phi=0.0, floor=0.0):
    return eliminate(gram([*columns, y], np.array(phi)), len(y), floor)


def test_the_products_are_those_of_the_whitened_columns():
    x, z, phi = np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0, 0.5]), 0.5
    # whitened: x -> (0.866, 1.5, 3), z -> (2.598, -0.5, 0): x z = 2.25 - 0.75 + 0, x x = 0.75 + 2.25 + 9
    rows = gram([x, z], np.array(phi))
    assert rows[0][1] == rows[1][0] == pytest.approx(1.5)
    assert rows[0][0] == pytest.approx(12.0)
    assert rows[1][1] == pytest.approx(whitened(z, phi) @ whitened(z, phi))


def test_products_of_columns_with_other_axes_are_those_of_each_column():
    rng, phi = np.random.default_rng(0), 0.3
    one, first, second, y = np.ones(7), rng.random((4, 1, 7)), rng.random((1, 3, 7)), rng.random(7)
    rows = gram([one, first, y, second], np.array(phi))
    assert rows[1][3].shape == (4, 3)
    for i in range(4):
        for j in range(3):
            columns = [whitened(x, phi) for x in (one, first[i, 0], y, second[0, j])]
            for k, x in enumerate(columns):
                for m, z in enumerate(columns):
                    assert np.broadcast_to(rows[k][m], (4, 3))[i, j] == pytest.approx(x @ z)


def test_combined_products_are_those_of_the_combined_columns():
    columns, phi = list(np.random.default_rng(1).standard_normal((3, 9))), np.array(0.6)
    mix = [[1.0, -1.0, 0.0], [0.0, 2.0, 0.5]]
    mixed = [columns[0] - columns[1], 2.0 * columns[1] + 0.5 * columns[2]]
    products, expected = combined(gram(columns, phi), mix), gram(mixed, phi)
    for k, j in ((0, 0), (0, 1), (1, 1)):
        assert products[k][j] == pytest.approx(expected[k][j])


def test_elimination_gives_the_least_squares_line():
    # y = 1 + 2 x except for one point that is 0.3 off the line; classical formulas by hand
    x, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 3.0, 5.3, 7.0])
    solved = solve([np.ones(4), x], y)
    last = last_coefficient(solved, -1e9, 1e9)
    assert last.center == pytest.approx(2.03)
    assert solved.rss == pytest.approx(0.063)
    assert solved.dof == 2


def test_elimination_agrees_with_numpy_on_whitened_data():
    rng = np.random.default_rng(3)
    columns, y, phi = list(rng.standard_normal((3, 30))), rng.standard_normal(30), 0.6
    solved = solve(columns, y, phi)
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
    solved = solve([np.ones(40)], y)
    upper, lower = last_coefficient(solved, 0.1, 0.2), last_coefficient(solved, -0.2, -0.1)
    assert upper.mass == pytest.approx(float(lower.mass), rel=1e-9)
    assert 1e-9 < upper.mass < 1e-5


def test_evidence_ratio_of_two_noise_levels_by_hand():
    # one column of ones, phi 0: evidence ~ N^(-1/2) RSS^(-(N-1)/2); RSS 4 times larger, N = 5: 4^-2 = 1/16
    small, large = np.array([1.0, -1.0, 1.0, -1.0, 0.0]), np.array([2.0, -2.0, 2.0, -2.0, 0.0])
    value = []
    for y in (small, large):
        solved = solve([np.ones(5)], y)
        value.append(log_evidence(solved, np.array(0.0), last_coefficient(solved, -1e9, 1e9)))
    assert value[0] - value[1] == pytest.approx(np.log(16.0))
