"""The configuration of a supervised warm start: the options of `scalerl sft MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scalerl.config.base import Count, Natural, NoneOrFew, Part, Positive, Seed
from scalerl.config.model import Lora


class Supervised(Part):
    """Supervised training of a causal language model on prompts and completions, before RL."""

    model: str
    """A directory with config, tokenizer and weights, or a name on the hub."""
    revision: str = "main"
    """Branch, tag or commit, for a name on the hub."""
    data: str
    """JSONL, JSON or Parquet file with rows {"prompt", "completion"} or {"messages"}; the last answer is trained."""
    out: Path | None = None
    """Directory to write; it must not exist yet or be empty. Default: runs/sft-NNN."""
    steps: Count | None = None
    """Number of updates; not together with `epochs`."""
    epochs: Positive | None = None
    """Passes over the training rows. Default: 3, if `steps` is not given."""
    batch_tokens: Count = 8192
    """Tokens per update, including prompts; a longer row is a batch by itself."""
    micro_batch_tokens: Count = 8192
    """Padded tokens per forward and backward pass; affects memory, not the result."""
    learning_rate: Positive = 1e-5
    """Learning rate of AdamW, constant after the warm-up."""
    warmup_steps: Natural = 10
    """Updates over which the learning rate grows linearly."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled decay of matrices."""
    max_tokens: Count | None = None
    """Length limit of a row, prompt and completion, in tokens. Default: the model's limit."""
    too_long: Literal["error", "drop"] = "error"
    """Treatment of rows over `max_tokens`."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of held-out prompts, measured before and after training; 0: none."""
    system_prompt: str = ""
    """Text before every prompt; use the same as in the RL run (data.system_prompt)."""
    chat_template: Literal["auto", "never", "always"] = "auto"
    """auto: use the tokenizer's chat template if it has one; always: a tokenizer without one is an error."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: needs less memory and about a third more time."""
    fp32_head: bool = True
    """Compute the LM head as an FP32 product, as RL does."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU if torch finds one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights of the forward pass; auto: float32 on CPU, bfloat16 on GPU (the optimizer keeps float32 masters)."""
    lora_rank: NoneOrFew = 0
    """Rank of adapters that are trained in place of all weights, with about 10 times the learning rate; 0: none."""
    lora_alpha: Positive = 32.0
    """The product of an adapter's matrices is scaled by alpha / rank."""
    lora_targets: str = "all-linear"
    """Linear modules with an adapter, by the ends of their names, separated by commas; all-linear: all of them."""
    seed: Seed = 0
    """Seed of the order of the rows, and of the adapters."""

    @model_validator(mode="after")
    def _check(self) -> Supervised:
        if self.steps is not None and self.epochs is not None:
            raise ValueError(f"steps: got {self.steps} and epochs {self.epochs:g}; allowed: one of the two")
        return self

    @property
    def lora(self) -> Lora | None:
        """Adapters that are trained in place of the model's weights; None: all weights are trained."""
        if not self.lora_rank:
            return None
        names = tuple(name.strip() for name in self.lora_targets.split(","))
        targets: Any = "all-linear" if names == ("all-linear",) else names
        return Lora(rank=self.lora_rank, alpha=self.lora_alpha, targets=targets)
