"""Corrections for a mismatch of trainer and engine (`recipe.mismatch`). Does not import torch.

training/recipe/mismatch.py has the equations. A ratio is that of the trainer's probability to the engine's.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scalerl.training.config.base import ORDERED, Part, Positive

RatioBounds = Annotated[tuple[Annotated[float, Field(ge=0)], Positive], ORDERED]
"""Smallest and largest ratio that is kept, both included; a low end of 0 bounds the ratio above only."""


class NoCorrection(Part):
    """No correction besides the ratio in the loss, as in the paper."""

    kind: Literal["none"] = "none"


class TokenMask(Part):
    """Tokens whose ratio is out of bounds carry no loss (IcePop, arXiv 2510.18855; with a low end of 0, TRL's mask)."""

    kind: Literal["token-mask"] = "token-mask"
    keep: RatioBounds = (0.5, 5.0)
    """Smallest and largest ratio of a token that is trained; the default is IcePop's."""


class SequenceMask(Part):
    """Rollouts whose product of ratios is out of bounds carry no loss (masked importance sampling, Liu and Li 2025)."""

    kind: Literal["sequence-mask"] = "sequence-mask"
    keep: RatioBounds = (0.0, 3.0)
    """Smallest and largest product of the ratios of a rollout that is trained; 3 is TRL's default."""


class GeometricMask(Part):
    """Rollouts whose geometric mean of ratios is out of bounds carry no loss (verl and SkyRL: "geometric")."""

    kind: Literal["geometric-mask"] = "geometric-mask"
    keep: RatioBounds = (0.99, 1.01)
    """Smallest and largest geometric mean of a rollout that is trained; the default is SkyRL's, verl's are tighter."""


class Reject(Part):
    """Rollouts with any token whose ratio is out of bounds carry no loss (verl's veto; prime-rl's sequence mask)."""

    kind: Literal["reject"] = "reject"
    keep: RatioBounds = (1e-4, 100.0)
    """Smallest and largest ratio of a token in a rollout that is trained; verl's low and prime-rl's high end."""


class TokenTruncate(Part):
    """The loss of each token is multiplied by its ratio, at most `most` (TIS, Yao et al. 2025)."""

    kind: Literal["token-truncate"] = "token-truncate"
    most: Positive = 2.0
    """Largest factor. Only for losses without a ratio; `cispo` is this with another default."""


class SequenceTruncate(Part):
    """The loss of each rollout is multiplied by its product of ratios, at most `most` (verl's sequence IS)."""

    kind: Literal["sequence-truncate"] = "sequence-truncate"
    most: Positive = 2.0
    """Largest factor. Only for losses without a ratio."""


Mismatch = Annotated[
    NoCorrection | TokenMask | SequenceMask | GeometricMask | Reject | TokenTruncate | SequenceTruncate,
    Field(discriminator="kind"),
]
