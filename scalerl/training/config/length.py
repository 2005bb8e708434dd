"""Control of the length of rollouts: interruption, penalty, or a hard limit only. Does not import torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scalerl.core.errors import short
from scalerl.training.config.base import ORDERED, Count, Part


class Interruption(Part):
    """Stop the thinking at a random point, insert a phrase that ends it, and let the model answer (ScaleRL sec. 4)."""

    kind: Literal["interruption"] = "interruption"
    thinking_tokens: Annotated[tuple[Count, Count], ORDERED] = (10_000, 12_000)
    """Limit of the thinking in tokens; each rollout draws one uniformly from [low, high]."""
    answer_tokens: Count = 2_048
    """Tokens of a rollout after its thinking has ended; a rollout that exceeds them is truncated."""
    phrase: str = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
    """Text inserted into the rollout at the limit; its tokens carry no loss."""
    end_tag: str = "</think>"
    """Text that ends the thinking; the phrase must end with it."""
    models: Literal["thinking", "all"] = "thinking"
    """thinking: only models that think in their completions. Others have the limit of tokens alone, or the phrase would
    stand in their answers. A model does not think if its chat template closes the thinking in the prompt, or if neither
    template nor vocabulary has the end_tag. all: every model, the default of a command with --recipe.length."""

    @model_validator(mode="after")
    def _check(self) -> Interruption:
        if not self.end_tag or not self.phrase.endswith(self.end_tag):
            raise ValueError(f"phrase: got {short(self.phrase)}; it must end with the end_tag {self.end_tag!r}")
        return self

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest rollout, without the phrase."""
        return self.thinking_tokens[1] + self.answer_tokens


class LengthPenalty(Part):
    """Lower the reward of correct rollouts near the length limit (ScaleRL eq. 9, after DAPO)."""

    kind: Literal["penalty"] = "penalty"
    max_tokens: Count = 14_000
    """Length limit in tokens, with an environment of each turn; a longer rollout is truncated. At this length the
    penalty is -1."""
    cache_tokens: Count = 2_000
    """Tokens before the limit over which the penalty grows linearly from 0 to -1."""

    @model_validator(mode="after")
    def _check(self) -> LengthPenalty:
        if self.cache_tokens > self.max_tokens:
            raise ValueError(f"cache_tokens: got {self.cache_tokens}; allowed: at most max_tokens ({self.max_tokens})")
        return self


class NoLengthControl(Part):
    """A hard limit on the length only; a rollout that reaches it is truncated."""

    kind: Literal["none"] = "none"
    max_tokens: Count = 14_000
    """Tokens of the longest rollout."""


LengthControl = Annotated[Interruption | LengthPenalty | NoLengthControl, Field(discriminator="kind")]
