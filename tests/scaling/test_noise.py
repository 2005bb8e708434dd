import numpy as np
import pytest
from simulated_runs import run

from scalerl.reading.curves import Curve, fit
from scalerl.reading.curves.noise import OTHER_NOISE, binomial, evaluations, local_noise, relative_noise


def with_errors(metric, stderr):
    return Curve(np.arange(1.0, len(metric) + 1), metric, stderr=stderr)


def test_noise_that_scales_with_a_share_is_largest_in_the_middle():
    assert binomial(np.array([0.0, 0.2, 0.5, 1.0]), 0.0, 1.0) == pytest.approx([0.01, 0.17, 0.26, 0.01])
    # -0.6 is at a fifth of the range from -1 to 1
    assert binomial(np.array([-0.6]), -1.0, 1.0) == pytest.approx([0.17])


def test_without_standard_errors_all_points_have_equal_weight():
    assert relative_noise(Curve(np.arange(1.0, 6.0), [0.1, 0.2, 0.3, 0.4, 0.5])) is None
    assert relative_noise(with_errors([0.1, 0.2, 0.3, 0.4, 0.5], np.zeros(5))) is None


def test_points_of_fewer_answers_are_noisier():
    p = np.full(8, 0.5) + 1e-4 * np.arange(8)  # no scatter, so the noise except OTHER_NOISE is from the answers
    curve = Curve(np.arange(1.0, 9.0), p, answers=[900, 100] * 4)
    # variances 1 and 9 with mean 5, with a weight of 0.9: 0.9 * 1 / 5 + 0.1 and 0.9 * 9 / 5 + 0.1
    assert OTHER_NOISE == 0.1
    assert relative_noise(curve) ** 2 == pytest.approx(np.array([0.28, 1.72] * 4), abs=1e-3)


def test_a_standard_error_does_not_weight_its_own_point():
    own = np.full(20, 0.02)
    own[10] = 0.2  # the median of nine neighbors is 0.02
    assert relative_noise(with_errors(np.full(20, 0.5), own)) is None
    # half of the run on a quarter of the prompts: 0.9 * 4 / 2.5 + 0.1 and 0.9 * 1 / 2.5 + 0.1
    halves = relative_noise(with_errors(np.full(20, 0.5), np.repeat([0.04, 0.02], 10))) ** 2
    assert halves[[0, 5, 14, 19]] == pytest.approx([1.54, 1.54, 0.46, 0.46])


def test_an_error_of_zero_is_unknown_and_not_certain():
    all_right = np.append(np.full(10, 0.5), np.ones(10))
    errors = np.append(np.full(10, 0.05), np.zeros(10))
    assert relative_noise(with_errors(all_right, errors)) is None


def test_scatter_beyond_the_standard_errors_is_equal_for_all_points():
    rough = 0.5 + 0.1 * (-1.0) ** np.arange(12)
    assert local_noise(rough) > 0.2
    stderr = np.where(np.arange(12) < 6, 0.001, 0.003)
    assert relative_noise(with_errors(rough, stderr)) == pytest.approx(np.ones(12), abs=0.01)


def test_points_of_many_answers_decide_the_fit():
    curve = run()
    metric = curve.metric.copy()
    metric[1::2] += 0.1 * np.random.default_rng(0).standard_normal(20)
    metric = np.clip(metric, 0, 1)
    answers = np.where(np.arange(41) % 2, 24, 15_000)  # errors of 0.1 and 0.004
    alike, told = fit(Curve(curve.compute, metric)), fit(Curve(curve.compute, metric, answers=answers))
    truth = 0.61
    assert abs(told.asymptote.mean - truth) < abs(alike.asymptote.mean - truth)
    assert told.asymptote.sd < 0.6 * alike.asymptote.sd


@pytest.mark.parametrize(("level", "sd"), [(0.02, 0.03), (0.5, 0.0), (1.0, 0.6)])
def test_evaluations_lie_within_the_bounds_by_construction(level, sd):
    drawn = evaluations(np.full((2, 500), level), np.full((2, 500), sd), 0.0, 1.0, np.random.default_rng(0))
    assert drawn.shape == (2, 500) and ((drawn >= 0) & (drawn <= 1)).all()
    assert (drawn[0] != drawn[1]).any() or sd == 0.0


def test_evaluations_have_the_given_mean_and_noise():
    level, sd = np.full((1, 40_000), 0.2), np.full((1, 40_000), 0.05)
    drawn = evaluations(200 * level - 100, 200 * sd, -100.0, 100.0, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(-60.0, abs=0.3) and drawn.std() == pytest.approx(10.0, rel=0.02)


def test_noise_at_a_bound_is_one_sided_and_has_the_given_size():
    drawn = evaluations(np.zeros((1, 40_000)), np.full((1, 40_000), 0.03), 0.0, 1.0, np.random.default_rng(0))
    # the mean is 0.015; 0.015 * 0.985 / 0.0009 is 16 answers, none of them right with probability 0.985^16 = 0.785
    assert drawn.mean() == pytest.approx(0.015, abs=5e-4)
    assert drawn.std() == pytest.approx(0.03, rel=0.05)
    assert (drawn == 0).mean() == pytest.approx(0.785, abs=0.01)
    assert set((16 * drawn[0]).round(6)) <= set(range(17))
