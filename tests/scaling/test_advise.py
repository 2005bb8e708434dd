import math

import numpy as np
import pytest
from simulated_runs import run

from scalerl.scaling import Curve, CurveError, advise, fit, sigmoid
from scalerl.scaling.stop import climbed, doubt_at, earlier


def test_a_run_in_full_climb_is_continued():
    advice = advise(fit(run(last=5000.0)), budget="2x", min_gain=0.01)
    assert advice.action == "continue"
    assert advice.probability > 0.99
    # truth: R(10000) - R(5000) = 0.5812 - 0.5213 (table-1 run)
    assert advice.gain.low < 0.0599 < advice.gain.high


def test_a_finished_run_is_stopped():
    advice = advise(fit(run(last=64_000.0)), budget="2x", min_gain=0.01)
    assert advice.action == "stop"
    assert advice.probability < 0.01 and advice.trend_probability < 0.1


def test_an_undecided_run_without_a_known_ceiling_is_trained_further():
    # the true gain is 0.080 (0.489 to 0.569), equal to the limit, and the ceiling is not identified yet
    advice = advise(fit(run(last=4000.0, noise=0.01)), budget="2x", min_gain=0.08)
    assert advice.action == "not known yet"
    assert 4000.0 < advice.train_to < math.inf


def level_after_climb(noise, creep=0.0, points=41):
    """Return a climb that ends at a sixteenth of the run, followed by a rise of `creep` per doubling of compute."""
    rng = np.random.default_rng(0)
    compute = np.linspace(0, 16, points)
    rising = creep * np.log2(np.maximum(compute, 1.0))
    return Curve(compute, sigmoid(compute, 0.5, 3.0, 0.2, 0.2) + rising + noise * rng.standard_normal(points))


def test_a_run_with_a_creep_after_its_climb_is_not_stopped():
    assert advise(fit(level_after_climb(0.003)), "2x", 0.01).action == "stop"
    creeping = advise(fit(level_after_climb(0.003, creep=0.02)), "2x", 0.01)
    assert creeping.action in ("not known yet", "continue")
    assert creeping.trend_probability > 0.9


def test_noise_that_hides_the_gain_prevents_a_stop():
    fitted = fit(level_after_climb(0.05))
    advice = advise(fitted, "2x", 0.01)
    assert advice.action == "not known yet" and advice.probability < 0.2 < advice.trend_probability
    assert advice.train_to == pytest.approx(16.4)  # the next evaluation
    # a gain that the same points could show
    assert advise(fitted, "2x", 0.1).action == "stop"


def test_a_run_without_a_climb_is_not_stopped():
    flat = Curve(np.arange(20.0), 0.3 + 0.003 * np.random.default_rng(1).standard_normal(20))
    assert advise(fit(flat), "2x", 0.01).action == "not known yet"


def test_little_noise_is_no_evidence_of_a_climb():
    # noise of 0.0005 around a level: the prior odds of a run that stays are 0.0002, and the points show no climb
    still = fit(Curve(np.arange(20.0), 0.3 + 0.0005 * np.random.default_rng(1).standard_normal(20)))
    assert still.futures.stays <= 0.1 and still.futures.climb < 0
    assert not climbed(still)
    assert climbed(fit(level_after_climb(0.003)))


def test_a_stop_needs_two_successive_evaluations():
    curve = level_after_climb(0.003)
    metric = curve.metric.copy()
    metric[-3:] += [0.015, 0.015, -0.01]  # the level seems to rise until the last point
    fitted = fit(Curve(curve.compute, metric))
    assert doubt_at(fitted, 2.0, 0.01, 0.2) is None and doubt_at(earlier(fitted), 2.0, 0.01, 0.2) is not None
    assert advise(fitted, "2x", 0.01).action == "not known yet"


def test_nine_evaluations_are_too_few_to_stop():
    actions = [advise(fit(level_after_climb(0.001, points=points)), "2x", 0.01).action for points in (9, 10)]
    assert actions == ["not known yet", "stop"]


def fallen(last_points):
    """Return a run at 0.5 that then evaluates to these values."""
    curve = level_after_climb(0.003)
    return Curve(np.arange(41.0 + len(last_points)), np.concatenate([curve.metric, last_points]))


def test_go_back_needs_a_fall_at_two_successive_evaluations():
    # means of the last three points: 0.5, 0.4, 0.2 below a best of about 0.502
    advice = advise(fit(fallen([0.2, 0.2, 0.2])), "2x", 0.01)
    assert advice.action == "go back"
    assert advice.go_back_to <= 40 and "fallen by 0.3" in advice.sentence
    once = advise(fit(fallen([0.5, 0.1])), "2x", 0.01)
    assert once.action == "not known yet" and math.isnan(once.go_back_to)


def test_less_noise_needs_less_training_to_identify_the_ceiling():
    from scalerl.scaling.advise import compute_to_identify

    noisy, clean = (compute_to_identify(fit(run(last=4000.0, noise=noise))) for noise in (0.02, 0.004))
    assert clean < noisy


def test_a_larger_gain_is_never_more_probable():
    fitted = fit(run(last=8000.0, noise=0.01))
    chances = [advise(fitted, "2x", gain).probability for gain in (0.001, 0.01, 0.03, 0.1)]
    assert chances == sorted(chances, reverse=True)


@pytest.mark.parametrize(
    ("budget", "min_gain", "message"),
    [
        (1000.0, 0.01, "already spent"),
        ("2x", 0.0, "min_gain"),
        ("twice", 0.01, "multiple"),
    ],
)
def test_invalid_budgets_and_gains_are_errors(budget, min_gain, message):
    with pytest.raises(CurveError, match=message):
        advise(fit(run()), budget, min_gain)
