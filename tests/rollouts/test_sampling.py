import math

import pytest
import torch

from scalerl.models.head import draw
from scalerl.training.resolve import nucleus_notes

LOGITS = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.0999, 0), (0.1001, 1), (0.35, 2), (0.61, 3), (0.9999999, 3)]
)
def test_a_number_selects_the_token_whose_cumulative_range_contains_it(uniform, token):
    tokens, logps = draw(LOGITS[None], torch.tensor([uniform], dtype=torch.float64), 1.0, 1.0)
    assert tokens.item() == token
    assert math.isclose(logps.item(), math.log([0.1, 0.2, 0.3, 0.4][token]), rel_tol=1e-5)


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0]])
    drawn = [
        draw(logits, torch.tensor([u], dtype=torch.float64), 1.0, 1.0)[0].item() for u in (0.0, 0.4999, 0.5, 0.99999)
    ]
    assert drawn == [1, 1, 3, 3]


def test_the_nucleus_is_the_smallest_set_that_reaches_top_p_and_log_probabilities_ignore_it():
    # 0.4 + 0.3 reaches 0.65: tokens 3 and 2 remain, with shares 4/7 and 3/7
    for uniform, token in ((0.0, 3), (4 / 7 - 1e-6, 3), (4 / 7 + 1e-6, 2), (0.999999, 2)):
        tokens, logps = draw(LOGITS[None], torch.tensor([uniform], dtype=torch.float64), 1.0, 0.65)
        assert tokens.item() == token
        assert math.isclose(logps.item(), math.log([0.1, 0.2, 0.3, 0.4][token]), rel_tol=1e-5)


def test_temperature_sharpens_and_zero_is_greedy():
    # squared and renormalized: 0.01, 0.04, 0.09, 0.16 over 0.30
    _, logps = draw(LOGITS[None], torch.tensor([0.0], dtype=torch.float64), 0.5, 1.0)
    assert math.isclose(logps.item(), math.log(0.01 / 0.30), rel_tol=1e-5)
    tokens, logps = draw(LOGITS[None], torch.tensor([0.0], dtype=torch.float64), 0.0, 1.0)
    assert tokens.item() == 3 and math.isclose(logps.item(), math.log(0.4), rel_tol=1e-5)


def test_a_run_with_a_nucleus_warns_at_the_start_about_its_ratios():
    assert nucleus_notes(1.0) == []
    (note,) = nucleus_notes(0.8)
    assert "1.25 times" in note  # 1 / 0.8
