"""Warm start of the lab's policy: a new tiny Qwen3 is trained on noisy reasoning traces.

The result must pass a gate: with greedy decoding, the model must get nearly all single steps right. A failed warm start
leads to two-phase RL curves that cannot be forecast.

Legend: B rows, T tokens, N target tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalerl.core.errors import ConfigError, UserError
from scalerl.core.files import as_umask, cache_root, trouble
from scalerl.core.manifest import check_files, seal
from scalerl.training.config import TinyModel
from scalerl.training.config.base import replace
from scalerl.training.config.data import TaskData, generated_tasks
from scalerl.training.models.head import token_logprobs
from scalerl.training.models.policy import Policy
from scalerl.training.models.sizes import tiny_config
from scalerl.training.rewards import generated
from scalerl.training.rewards.arithmetic import ALPHABET, PAD, STOP
from scalerl.training.rewards.base import END_THINK, THINK

GATE = 0.99
"""Share of the 300 single steps of each task that the model must get right."""
ATTEMPTS = 3
"""Number of seeds to try: whether a warm start fails depends on the machine's rounding too."""
WEIGHT_DECAY = 0.3
"""Weight decay of the warm start. It keeps the weights small: with 0.01 the model amplified FP32 rounding more than
twice as much."""
LOG = "warm_start.json"
"""File with the loss and the accuracy of the training."""
_RECIPE_VERSION = 2
"""Part of the cache key; increase it when the output of this file changes."""

ReportProgress = Callable[[dict[str, float]], None]


def warm_start_directory(model: TinyModel, data: Sequence[TaskData]) -> Path:
    """Return the cache directory for these settings (under $SCALERL_CACHE or ~/.cache/scalerl)."""
    unused = set() if model.experts else {"experts", "active_experts"}
    taught: dict[str, Any] = {}
    for task in generated_tasks(data):
        taught.setdefault(task.kind, []).append(generated.GENERATED[task.kind].taught(task))
    taught = {kind: own[0] if len(own) == 1 else own for kind, own in taught.items()}
    key = json.dumps([_RECIPE_VERSION, model.model_dump(exclude=unused), taught], sort_keys=True)
    return cache_root() / f"warm-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"


def warm_start_fault(directory: Path) -> str:
    """Return why a directory is no warm start as it was written; empty if it is one."""
    try:
        check_files(directory)
    except (UserError, ValueError) as error:
        return str(error)
    except OSError as error:
        return trouble(error)
    return ""


def warm_start(model: TinyModel, data: Sequence[TaskData], directory: Path, report: ReportProgress) -> Path:
    """Train the policy and save it as a Hugging Face directory, unless it exists already.

    Args:
        model: Size and settings of the model.
        data: Tasks whose traces are learned.
        directory: Output directory.
        report: Function called every 50 updates with step and loss, and at the end with the accuracy of the gate.

    Raises:
        ConfigError: The model did not pass the gate, or could not be saved; nothing is saved.
    """
    if not (problem := warm_start_fault(directory)):
        return directory
    if directory.parent == cache_root():
        shutil.rmtree(directory, ignore_errors=True)  # damaged, for example by a loss of power
    _check_place(directory, problem)
    tokenizer = make_tokenizer()
    history: list[dict[str, float]] = []
    for attempt in range(ATTEMPTS):
        seed = model.warm_start.seed + 1000 * attempt
        tried = replace(model, warm_start=replace(model.warm_start, seed=seed))
        torch.manual_seed(seed)
        policy = Policy(make_model(model, tokenizer))
        history += _train(policy, tried, data, tokenizer, report)
        accuracy = {
            task.curve: fact_accuracy(policy, tokenizer, generated.GENERATED[task.kind].facts())
            for task in generated_tasks(data)
        }
        by_task = {f"fact_accuracy_{name}": share for name, share in accuracy.items()} if len(accuracy) > 1 else {}
        history.append({"seed": float(seed), "fact_accuracy": min(accuracy.values()), **by_task})
        report(history[-1])
        if min(accuracy.values()) >= GATE:
            break
    else:
        shares = ", ".join(f"{share:.1%} ({name})" for name, share in accuracy.items())
        raise ConfigError(
            f"model.warm_start: after {model.warm_start.steps} updates with the last of {ATTEMPTS} seeds, the model "
            f"gets {shares} of the 300 single steps right; allowed: at least {GATE:.0%}, which a clean curve needs; "
            "increase model.warm_start.steps"
        )
    _save(policy, tokenizer, history, directory)
    return directory


def _check_place(directory: Path, problem: str) -> None:
    """Check before minutes of training that the result can be saved.

    Raises:
        ConfigError: A damaged directory is still there, or this user may not make one.
    """
    own = "or set SCALERL_CACHE to a directory of your own"
    if os.path.lexists(directory) and not (directory.is_dir() and not any(directory.iterdir())):
        raise ConfigError(f"model.warm_start: {directory} cannot be used ({problem}) or removed; remove it, {own}")
    directory.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(directory.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"model.warm_start: no file can be made in {directory.parent}; change its permissions, {own}")


def _save(policy: Policy, tokenizer: Any, history: Sequence[dict[str, float]], directory: Path) -> None:
    """Write the directory atomically, under a temporary name first."""
    temporary = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
    try:
        policy.model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        as_umask(temporary)
        (temporary / LOG).write_text("".join(json.dumps(row) + "\n" for row in history))
        seal(temporary, 0)
        temporary.rename(directory)  # replaces an empty directory; fails if it is not empty
    except OSError:
        if warm_start_fault(directory):  # otherwise another process saved the same model
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make_tokenizer() -> Any:
    """Return the lab's tokenizer: one token per character, and one for each of the three tags."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    words = [*ALPHABET, THINK, END_THINK, PAD]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=PAD))
    inner.pre_tokenizer = Split(Regex(r"</?think>|<pad>|[\s\S]"), "isolated")
    inner.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=PAD, eos_token=STOP)


def make_model(model: TinyModel, tokenizer: Any) -> Any:
    """Return an untrained tiny Qwen3, dense or with experts.

    Raises:
        ConfigError: The width is not divisible by the heads.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    if model.width % (2 * model.heads):
        raise ConfigError(f"model.width: got {model.width}; allowed: a multiple of 2 x model.heads = {2 * model.heads}")
    settings = {
        **tiny_config(model, len(tokenizer)),
        "max_position_embeddings": 512,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    if not model.experts:
        return Qwen3ForCausalLM(Qwen3Config(**settings))
    # as in the released Qwen3-MoE models; transformers' default is False
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**settings, norm_topk_prob=True))


def _train(
    policy: Policy, model: TinyModel, data: Sequence[TaskData], tokenizer: Any, report: ReportProgress
) -> list[dict[str, float]]:
    """Train on the cross-entropy of completions; low noise in the first 60% of updates lets the model learn facts."""
    settings = model.warm_start
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=settings.learning_rate, betas=(0.9, 0.99), weight_decay=WEIGHT_DECAY
    )
    history: list[dict[str, float]] = []
    sources = {
        early: generated.traces(data, settings, settings.step_noise * (0.15 if early else 1.0), (settings.seed, early))
        for early in (True, False)
    }
    start = time.perf_counter()
    for step in range(settings.steps):
        pairs = [next(sources[step < 0.6 * settings.steps]) for _ in range(settings.batch)]
        pairs.sort(key=lambda pair: len(pair[1]))
        optimizer.zero_grad(set_to_none=True)
        cut = len(pairs) - len(pairs) // 8  # the longest eighth is separate, or all others would be padded to it
        parts = [_collate(part, tokenizer) for part in (pairs[:cut], pairs[cut:]) if part]
        loss, total = 0.0, sum(int(targets_BT.sum()) for _, targets_BT in parts)
        for tokens_BT, targets_BT in parts:
            part_loss = _negative_logp(policy, tokens_BT, targets_BT) / total
            part_loss.backward()  # type: ignore[no-untyped-call]
            loss += float(part_loss.detach())
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, settings.steps)
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == settings.steps:
            seconds = round(time.perf_counter() - start, 2)
            history.append({"step": float(step + 1), "loss": round(loss, 4), "seconds": seconds})
            report(history[-1])
    return history


def _negative_logp(policy: Policy, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """Return minus the summed log-probability of the targets among tokens 1..T-1."""
    hidden_ND = policy.hidden(tokens_BT[:, :-1])[targets_BT]
    logp_N, _ = token_logprobs(hidden_ND, policy.head_weight, None, tokens_BT[:, 1:][targets_BT], rule=policy.rule)
    return -logp_N.sum()


def _schedule(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over 50 updates, then linear decay to a tenth."""
    warmup = min(50, steps)
    if step < warmup:
        return (step + 1) / warmup
    return 1.0 - 0.9 * (step - warmup) / max(1, steps - warmup)


def _collate(pairs: list[tuple[str, str]], tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Return tokens [B, T] padded at the end, and which of the T-1 next tokens belong to completions."""
    encoded = tokenizer([prompt + completion for prompt, completion in pairs])["input_ids"]
    prompt_lengths = [len(ids) for ids in tokenizer([prompt for prompt, _ in pairs])["input_ids"]]
    longest = max(len(ids) for ids in encoded)
    tokens_BT = torch.full((len(pairs), longest), tokenizer.pad_token_id)
    targets_BT = torch.zeros(len(pairs), longest - 1, dtype=torch.bool)
    for b, (ids, start) in enumerate(zip(encoded, prompt_lengths, strict=True)):
        tokens_BT[b, : len(ids)] = torch.tensor(ids)
        targets_BT[b, start - 1 : len(ids) - 1] = True
    return tokens_BT, targets_BT


@torch.no_grad()
def fact_accuracy(policy: Policy, tokenizer: Any, facts: Sequence[tuple[str, str]]) -> float:
    """Return the share of single steps, (text up to the result, digit), whose digit is the most likely token."""
    right = 0
    for text, digit in facts:
        ids = tokenizer(text)["input_ids"]
        logits_NV = policy.logits(policy.hidden(torch.tensor([ids]))[0, -1:])
        right += int(logits_NV.argmax()) == tokenizer.convert_tokens_to_ids(digit)
    return right / len(facts)
