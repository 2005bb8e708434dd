import math

import pytest
import torch

from scalerl.training.models.head import draw

LOGITS = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.0999, 0), (0.1001, 1), (0.35, 2), (0.61, 3), (0.9999999, 3)]
)
def test_a_number_selects_the_token_whose_cumulative_range_contains_it(uniform, token):
    tokens, logps = draw(LOGITS[None], torch.tensor([uniform], dtype=torch.float64), 1.0)
    assert tokens.item() == token
    assert math.isclose(logps.item(), math.log([0.1, 0.2, 0.3, 0.4][token]), rel_tol=1e-5)


def test_temperature_sharpens_and_zero_is_greedy():
    # squared and renormalized: 0.01, 0.04, 0.09, 0.16 over 0.30
    _, logps = draw(LOGITS[None], torch.tensor([0.0], dtype=torch.float64), 0.5)
    assert math.isclose(logps.item(), math.log(0.01 / 0.30), rel_tol=1e-5)
    tokens, logps = draw(LOGITS[None], torch.tensor([0.0], dtype=torch.float64), 0.0)
    assert tokens.item() == 3 and math.isclose(logps.item(), math.log(0.4), rel_tol=1e-5)
