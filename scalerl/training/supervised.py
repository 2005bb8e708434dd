"""Supervised warm start of any model: maximum likelihood of completions, with the learner that RL uses.

REINFORCE with advantage 1 and weights that sum to one has the loss -mean log p over the trained tokens, which is the
cross-entropy. The learner's `step` is therefore used unchanged, with its FP32 head, FP32 masters, clipping and
micro-batches.

Legend: B rows of a batch, T tokens of the longest.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch

from scalerl.config.placement import Hardware
from scalerl.config.recipe import AdamW, Reinforce
from scalerl.config.supervised import Supervised
from scalerl.core.errors import ConfigError
from scalerl.core.outputs import check_apart, check_new_directory
from scalerl.models.lora import LoraPolicy
from scalerl.models.policy import Policy, stop_tokens
from scalerl.models.rows import Rows
from scalerl.prompts.demonstrations import Demonstration, Demonstrations, load_demonstrations
from scalerl.training.learner.base import BadGradient, TrainBatch
from scalerl.training.learner.single import SingleLearner
from scalerl.training.resolve import resolve_hardware
from scalerl.training.run_model import load_model

EPOCHS = 3.0
"""Number of epochs if neither steps nor epochs are given."""
EPS = 1e-8
"""eps of AdamW; the recipe's 1e-15 is meant for the small gradients of RL."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a supervised warm start; sft.json contains it together with the settings.

    Example: Outcome(steps=[{"step": 1, "loss": 1.32, ...}], held_out_before=1.4, held_out_after=0.2, stopped=False)
    """

    steps: list[dict[str, float]]
    """One row per update: step, loss (nats per token), tokens, grad_norm, learning_rate, seconds."""
    held_out_before: float | None
    """Mean loss of the held-out completions before the first update, nats per token; None without held-out rows."""
    held_out_after: float | None
    """The same after the last update."""
    stopped: bool
    """Whether a stop was requested before the last update."""


def fine_tune(settings: Supervised, directory: Path, report: Report, stop_requested: Callable[[], bool]) -> Outcome:
    """Train a model on the completions of a file and write it to a directory.

    Args:
        settings: Model, data and training settings.
        directory: Output directory for the model, the tokenizer and sft.json; it must not exist or must be empty.
        report: Function that gets lines about the progress.
        stop_requested: Function called before every update; if it returns true, the current weights are written.

    Raises:
        ConfigError: The directory is not empty, the model or the rows cannot be used, or the loss is not finite.
    """
    check_new_directory(directory, "--out")
    named = (("MODEL", settings.model), ("--data", settings.data))
    check_apart(directory, [(name, Path(path)) for name, path in named], "--out")
    policy, tokenizer = _load(settings, report)
    limit = _limit(settings, policy)
    rows = load_demonstrations(settings, tokenizer, stop_tokens(policy, tokenizer), limit)
    for note in rows.notes:
        report(note)
    learner = SingleLearner(
        policy,
        AdamW(
            learning_rate=settings.learning_rate,
            warmup_steps=settings.warmup_steps,
            weight_decay=settings.weight_decay,
            eps=EPS,
        ),
        Reinforce(),
        micro_batch_tokens=settings.micro_batch_tokens,
        gradient_checkpointing=settings.gradient_checkpointing,
    )
    before = held_out_loss(policy, rows.held_out, settings.micro_batch_tokens)
    total = sum(1 for _ in batches(rows.training, settings))
    report(_opening(rows, total, before))
    steps: list[dict[str, float]] = []
    for batch in batches(rows.training, settings):
        if stop_requested():
            break
        steps.append(_step(learner, collate(batch), settings))
        row = steps[-1]
        report(
            f"step {row['step']:g}/{total}  loss {row['loss']:.4f}  tokens {row['tokens']:g}  {row['seconds']:.1f} s"
        )
    after = held_out_loss(policy, rows.held_out, settings.micro_batch_tokens)
    outcome = Outcome(steps, before, after, stopped=len(steps) < total)
    _write(directory, learner, tokenizer, settings, rows, outcome)
    return outcome


def batches(rows: Sequence[Demonstration], settings: Supervised) -> Iterator[list[Demonstration]]:
    """Yield the rows of every update; each epoch is shuffled and split into full batches.

    Args:
        rows: Training rows.
        settings: The size of a batch in tokens, the seed, and steps or epochs.
    """
    if settings.steps is not None:
        yield from islice((batch for epoch in count() for batch in _epoch(rows, settings, epoch)), settings.steps)
        return
    epochs = settings.epochs or EPOCHS
    for epoch in range(math.ceil(epochs)):
        share, whole = min(1.0, epochs - epoch), _epoch(rows, settings, epoch)
        yield from whole[: max(1, round(share * len(whole)))]


def collate(rows: Sequence[Demonstration]) -> TrainBatch:
    """Return a batch whose REINFORCE loss is the mean cross-entropy of its completion tokens."""
    lengths = [len(row.tokens) for row in rows]
    tokens_BT = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
    trained_BT = torch.zeros(tokens_BT.shape, dtype=torch.bool)
    for b, row in enumerate(rows):
        tokens_BT[b, : lengths[b]] = torch.tensor(row.tokens)
        trained_BT[b, row.prompt_length : lengths[b]] = True
    return TrainBatch(
        tokens_BT=tokens_BT,
        length_B=torch.tensor(lengths),
        behavior_BT=torch.zeros(tokens_BT.shape),
        advantages_B=torch.ones(len(rows)),
        trained_BT=trained_BT,
        weights_BT=trained_BT / trained_BT.sum(),
    )


@torch.no_grad()
def held_out_loss(policy: Policy, rows: Sequence[Demonstration], micro_batch_tokens: int) -> float | None:
    """Return the mean cross-entropy of the rows' completion tokens, nats per token; None without rows.

    Args:
        policy: The model.
        rows: Held-out rows.
        micro_batch_tokens: Padded tokens per forward pass.
    """
    if not rows:
        return None
    batch, total, tokens = collate(rows), 0.0, 0
    for chosen, width in batch.micro_batches(micro_batch_tokens):
        tokens_bt, trained_bt = (part[chosen, :width] for part in (batch.tokens_BT, batch.trained_BT))
        logp_n, _ = policy(Rows.padded(tokens_bt, trained_bt, policy.device))
        total, tokens = total - float(logp_n.sum()), tokens + len(logp_n)
    return total / tokens


def _load(settings: Supervised, report: Report) -> tuple[Policy, Any]:
    hardware = resolve_hardware(Hardware(device=settings.device, dtype=settings.dtype))
    policy, tokenizer = load_model(settings.model, settings.revision, hardware, settings.fp32_head)
    return LoraPolicy(policy, settings.lora, settings.seed) if settings.lora else policy, tokenizer


def _limit(settings: Supervised, policy: Policy) -> int:
    """Return the maximum length of a row in tokens: the user's limit, checked against the model's positions."""
    positions = policy.positions
    if settings.max_tokens is None:
        return positions or 2**31
    if positions is not None and settings.max_tokens > positions:
        raise ConfigError(
            f"--max-tokens: got {settings.max_tokens}; allowed: at most {positions}, the model's positions"
        )
    return settings.max_tokens


def _epoch(rows: Sequence[Demonstration], settings: Supervised, epoch: int) -> list[list[Demonstration]]:
    order = list(rows)
    random.Random(f"sft {settings.seed} {epoch}").shuffle(order)
    full: list[list[Demonstration]] = []
    room = 0
    for row in order:
        if not full or len(row.tokens) > room:
            full.append([])
            room = settings.batch_tokens
        full[-1].append(row)
        room -= len(row.tokens)
    return full


def _step(learner: SingleLearner, batch: TrainBatch, settings: Supervised) -> dict[str, float]:
    began = time.perf_counter()
    try:
        stats = learner.step(batch)
    except BadGradient as error:
        raise ConfigError(
            f"step {learner.updates + 1}: {error}, with --learning-rate {settings.learning_rate:g}; nothing was "
            "written. Give a lower learning rate or a longer --warmup-steps; at step 1, check the model's weights"
        ) from None
    return {
        "step": learner.updates,
        "loss": stats.loss,
        "tokens": int(batch.length_B.sum()),
        "trained_tokens": stats.trained_tokens,
        "grad_norm": stats.grad_norm,
        "learning_rate": stats.learning_rate,
        "seconds": time.perf_counter() - began,
    }


def _opening(rows: Demonstrations, total: int, before: float | None) -> str:
    tokens = sum(len(row.tokens) for row in rows.training)
    apart = "" if before is None else f"; {len(rows.held_out)} rows held out, loss {before:.4f}"
    return f"{len(rows.training)} rows of {tokens:,} tokens, {total} updates{apart}"


def _write(
    directory: Path,
    learner: SingleLearner,
    tokenizer: Any,
    settings: Supervised,
    rows: Demonstrations,
    outcome: Outcome,
) -> None:
    """Write model, tokenizer and sft.json to a temporary directory, then rename it."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
    try:
        learner.export(temporary)
        learner.export_adapter(temporary / "adapter")
        tokenizer.save_pretrained(temporary)
        record = {
            "settings": settings.model_dump(mode="json"),
            "training_rows": len(rows.training),
            "held_out_rows": len(rows.held_out),
            "held_out_loss_before": outcome.held_out_before,
            "held_out_loss": outcome.held_out_after,
            "stopped": outcome.stopped,
            "steps": outcome.steps,
        }
        (temporary / "sft.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
