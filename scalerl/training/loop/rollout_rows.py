"""Rollouts as readable text and as exact records: rollouts.jsonl, rollouts/samples.jsonl and .bin (docs/metrics.md)."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np

from scalerl.core.errors import raising
from scalerl.core.run_files import SAVED_SAMPLES
from scalerl.core.types import FloatArray, Rollout, Score, ScoredGroup, Visit
from scalerl.training.models.text import TAIL, TokenText

RolloutRow = dict[str, Any]
Pair = tuple[int, int]

INJECTED = "⟦{}⟧"
"""Format of text that was injected into a rollout, such as the phrase of an interruption."""

SEQUENCE = "\n⟦the next conversation of the rollout⟧\n"
"""Text between the sequences of a rollout."""

LogRatios = Mapping[int, FloatArray]
"""Log ratios of the first rollout of each replayed group at its sampled tokens, by index of the group."""

DETAILED = 4
"""Maximum number of the saved training rollouts with `token_detail`."""

ARRAYS = ("prompt_tokens", "tokens", "logps", "versions", "sampled")
"""Arrays of a record; all but the first are those of `Rollout`."""

NUCLEUS = ("nucleus_sizes", "nucleus_ids")
"""Further arrays under top-p, those of `Rollout.nucleus`; log-probabilities are normalized over these ids."""

OF_ENVIRONMENT = ("turns", "calls", "observed", "metrics", "rewards")
"""Fields of `Outcome` in a row. Seconds are left out, because rows of equal runs are equal."""

DETAIL_TOKENS = 512
"""Maximum number of tokens in `token_detail`: half from the start, half from the end of the rollout."""


def marked_text(text: TokenText, prompt: Sequence[int], rollout: Rollout) -> str:
    """Return a rollout as text, with injected tokens in brackets: "7+4=1;⟦</think>⟧1"."""
    pairs = zip(rollout.tokens.tolist(), rollout.sampled.tolist(), strict=True)
    marked, before = "", list(prompt)
    for sampled, part in groupby(pairs, key=lambda pair: pair[1]):
        tokens = [token for token, _ in part]
        decoded = text.full_text(before, tokens)
        marked += decoded if sampled else INJECTED.format(decoded)
        before += tokens
    return marked


def rollout_row(
    text: TokenText,
    step: int,
    scored: ScoredGroup,
    sample: int,
    log_ratio_N: FloatArray | None = None,
    detailed: bool = False,
) -> dict[str, Any]:
    """Return one rollout as a row.

    Args:
        text: Decoder of the model's tokens.
        step: Number of completed updates.
        scored: The rollout's group.
        sample: Index of the rollout in the group.
        log_ratio_N: Log ratio of each of its N sampled tokens (nats), if the trainer recomputed them.
        detailed: Whether to add `token_detail`.
    """
    prompt = scored.group.visit.prompt
    rollout: Rollout = scored.group.rollouts[sample]
    score: Score = scored.scores[sample]
    versions = rollout.versions[rollout.sampled] if rollout.sampled.any() else rollout.versions
    ratios = [] if log_ratio_N is None else log_ratio_N.tolist()
    return {
        "step": step,
        "task": prompt.task,
        "prompt_id": prompt.id,
        "sample": sample,
        "question": prompt.question,
        "prompt": prompt.text if rollout.prompt is None else text.full_text((), rollout.prompt),
        "completion": SEQUENCE.join(
            marked_text(text, sequence.after(prompt), sequence) for sequence in rollout.sequences
        ),
        "answer": prompt.answer,
        "reward": score.reward if score.counted else None,
        "passed": score.passed if score.counted else None,
        "reason": score.reason,
        "tokens": sum(map(len, rollout.sequences)),
        "truncated": any(sequence.truncated for sequence in rollout.sequences),
        "interrupted": any(sequence.interrupted for sequence in rollout.sequences),
        "ended": rollout.ended,
        "environment": {name: getattr(rollout.outcome, name) for name in OF_ENVIRONMENT} if rollout.outcome else None,
        "versions": [int(versions.min()), int(versions.max())],
        "staleness": step - int(versions.min()),
        "log_ratio_min": min(ratios, default=None),
        "log_ratio_max": max(ratios, default=None),
        "token_detail": token_detail(text, rollout.after(prompt), step, rollout, log_ratio_N) if detailed else None,
    }


def token_detail(
    text: TokenText, prompt: Sequence[int], step: int, rollout: Rollout, log_ratio_N: FloatArray | None
) -> dict[str, list[Any] | int]:
    """Return text, staleness and log ratio of each token; a long rollout is reduced to its first and last tokens.

    Example: {"text": ["7", "+", "4"], "staleness": [2, 1, null], "log_ratio": [0.01, -0.2, null], "left_out": 0}
    """
    total, half = len(rollout), DETAIL_TOKENS // 2
    shown = list(range(total)) if total <= DETAIL_TOKENS else [*range(half), *range(total - half, total)]
    ratio_T: list[float | None] = [None] * total
    if log_ratio_N is not None:
        for at, value in zip(np.flatnonzero(rollout.sampled).tolist(), log_ratio_N.tolist(), strict=True):
            ratio_T[at] = round(value, 4) if math.isfinite(value) else None
    tokens, left_out = rollout.tokens.tolist(), total - len(shown)
    parts = [(0, tokens)] if not left_out else [(0, tokens[:half]), (total - half, tokens[-half:])]
    return {
        "text": [
            token_text for start, part in parts for token_text in token_texts(text, [*prompt, *tokens[:start]], part)
        ],
        "staleness": [step - int(rollout.versions[t]) if rollout.sampled[t] else None for t in shown],
        "log_ratio": [ratio_T[t] for t in shown],
        "left_out": left_out,
    }


def token_texts(text: TokenText, before: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Return the text of each token after the tokens `before`; a character of several tokens belongs to the last."""
    texts, context, pending = [], list(before), list[int]()
    for number, token in enumerate(tokens, start=1):
        pending.append(token)
        now = text.full_text(context, pending)
        # no character has more than four bytes
        complete = not now.endswith("\ufffd") or len(pending) >= 4 or number == len(tokens)
        texts.append(now if complete else "")
        if complete:
            context, pending = [*context[-TAIL:], *pending], []
    return texts


def sample_rows(
    text: TokenText, step: int, group: ScoredGroup, log_ratios: Sequence[FloatArray | None]
) -> list[RolloutRow]:
    """Return the rollouts of one group of the last batch, at most `SAVED_SAMPLES`.

    Args:
        text: Decoder of the model's tokens.
        step: Number of completed updates.
        group: The group chosen by `telling_group`.
        log_ratios: Log ratios of its first `DETAILED` rollouts under the weights of `step`; empty if not computed.
    """
    ratios = [*log_ratios, *[None] * SAVED_SAMPLES]
    return [
        rollout_row(text, step, group, sample, ratios[sample], detailed=sample < DETAILED)
        for sample in range(min(SAVED_SAMPLES, len(group.scores)))
    ]


def packed_tokens(prompt: Sequence[int], rollout: Rollout) -> bytes:
    """Return a rollout's exact tokens as a compressed .npz file, one record of rollouts/samples.bin."""
    file = io.BytesIO()
    # the nucleus is first, so that damage at the end of the list of arrays cannot pass for a record without it
    arrays: dict[str, Any] = dict(zip(NUCLEUS, rollout.nucleus, strict=True)) if rollout.nucleus is not None else {}
    arrays |= {"prompt_tokens": np.asarray(prompt, np.int32), **{name: getattr(rollout, name) for name in ARRAYS[1:]}}
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def unpacked_tokens(record: bytes) -> dict[str, Any]:
    """Return the arrays of a record by name.

    Raises:
        ValueError: The record is damaged.
    """
    with raising(ValueError, str), np.load(io.BytesIO(record)) as arrays:
        if set(arrays.files) not in ({*ARRAYS}, {*ARRAYS, *NUCLEUS}):
            raise ValueError(f"it has the arrays {', '.join(sorted(arrays.files))}")
        contents = {name: arrays[name] for name in arrays.files}
    return contents


def telling_group(groups: Sequence[ScoredGroup]) -> ScoredGroup:
    """Return the first group whose rewards differ, so that it has a gradient; otherwise the first group."""
    rewards = ({score.reward for score in scored.scores if score.counted} for scored in groups)
    return next((scored for scored, values in zip(groups, rewards, strict=True) if len(values) > 1), groups[0])


def kept_samples(visits: Sequence[Visit], samples: Sequence[int], replayed: Collection[int], count: int) -> set[Pair]:
    """Return (index of the group, sample) of every rollout of which `evaluated_rows` may make a row, or is replayed.

    Args:
        visits: Visits of the evaluation.
        samples: Rollouts of each visit.
        replayed: Indices of the groups whose first rollout is replayed; a replay may have no log ratios.
        count: Rows per task.
    """
    pairs = {(number, 0) for number in replayed}
    for numbers in by_task([visit.prompt.task for visit in visits]):
        width = min(samples[number] for number in numbers)
        pairs.update((number, 0) for number in _spread(numbers, count)[:count])
        pairs.update(_further(numbers, width, count - len(_spread(numbers, count)[:count])))
    return pairs


def evaluated_rows(
    text: TokenText, step: int, groups: Sequence[ScoredGroup], log_ratios: LogRatios, count: int
) -> list[RolloutRow]:
    """Return `count` rows per task of an evaluation: the first rollouts of groups spread over the prompts.

    Replayed groups are included, so that their rows have log ratios. If a task has fewer than `count` prompts, further
    samples of each prompt are added.
    """
    rows = []
    for numbers in by_task([scored.group.visit.prompt.task for scored in groups]):
        first = list(dict.fromkeys([*(n for n in numbers if n in log_ratios), *_spread(numbers, count)]))[:count]
        pairs = [(n, 0) for n in sorted(first)]
        pairs += _further(numbers, min(len(groups[n].scores) for n in numbers), count - len(pairs))
        rows += [
            rollout_row(
                text,
                step,
                groups[n],
                sample,
                log_ratios.get(n) if sample == 0 else None,
                detailed=sample == 0 and n in log_ratios,
            )
            for n, sample in pairs
        ]
    return rows


def by_task(tasks: Sequence[str]) -> list[list[int]]:
    """Return the indices of each task's groups, sorted by the name of the task."""
    numbers: dict[str, list[int]] = {}
    for number, task in enumerate(tasks):
        numbers.setdefault(task, []).append(number)
    return [numbers[task] for task in sorted(numbers)]


def _spread(numbers: Sequence[int], count: int) -> Sequence[int]:
    return numbers[:: max(1, len(numbers) // count)] if count else []


def _further(numbers: Sequence[int], width: int, count: int) -> list[Pair]:
    """Return the first `count` samples of groups after their first one."""
    return list(islice(((n, sample) for sample in range(1, width) for n in numbers), max(0, count)))
