import json
import math

import pytest
from scaling_runs import run

from scalerl.scaling import CurveError, advise, fit


def test_a_run_in_full_climb_is_continued():
    advice = advise(fit(run(last=5000.0)), budget="2x", min_gain=0.01)
    assert advice.action == "continue"
    assert advice.probability > 0.99
    # truth: R(10000) - R(5000) = 0.5812 - 0.5213 (table-1 run)
    assert advice.gain.low < 0.0599 < advice.gain.high


def test_a_finished_run_is_stopped():
    advice = advise(fit(run(last=64_000.0)), budget="2x", min_gain=0.01)
    assert advice.action == "stop"
    assert advice.probability < 0.01
    assert advice.sentence.startswith(
        "Stop: training to 1.28e+05 device-hours gains more than 0.01 only with probability 0.0"
    )


def test_an_undecided_run_without_a_known_ceiling_is_trained_further():
    # the truth gains 0.080 (0.489 to 0.569), just what is asked for, and the ceiling is not known yet
    advice = advise(fit(run(last=4000.0, noise=0.01)), budget="2x", min_gain=0.08)
    assert advice.action == "not identified yet"
    assert 4000.0 < advice.train_to < math.inf
    assert advice.sentence.startswith("Not identified yet: train at least to 1.")


def test_less_noise_asks_for_less_training_before_the_ceiling_is_known():
    from scalerl.scaling.advise import compute_to_identify

    noisy, clean = (compute_to_identify(fit(run(last=4000.0, noise=noise))) for noise in (0.02, 0.004))
    assert clean < noisy


def test_asking_for_a_larger_gain_never_makes_it_likelier():
    found = fit(run(last=8000.0, noise=0.01))
    chances = [advise(found, "2x", gain).probability for gain in (0.001, 0.01, 0.03, 0.1)]
    assert chances == sorted(chances, reverse=True)


@pytest.mark.parametrize(
    ("budget", "min_gain", "message"),
    [
        (1000.0, 0.01, r"the budget 1000 is already spent \(last point 1.6e\+04\); give a larger one, such as '2x'"),
        ("2x", 0.0, "min_gain must be positive; got 0.0"),
        ("twice", 0.01, "positive number, or a multiple"),
    ],
)
def test_questions_without_an_answer_are_refused(budget, min_gain, message):
    with pytest.raises(CurveError, match=message):
        advise(fit(run()), budget, min_gain)


def test_a_fit_without_uncertainty_cannot_advise():
    with pytest.raises(CurveError, match="a paper fit has no uncertainty to decide with"):
        advise(fit(run(), method="paper"), "2x", 0.01)


def test_advice_is_json():
    advice = json.loads(json.dumps(advise(fit(run()), "2x", 0.01).to_dict()))
    assert advice["train_to"] is None
    assert set(advice) >= {"action", "probability", "budget", "min_gain", "gain", "sentence"}
