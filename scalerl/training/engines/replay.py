"""Checks that an engine samples with the weights that it reports, by recomputing its log-probabilities.

A test that outputs change and nothing is dropped does not detect an engine whose LM head was never updated; comparing
log-probabilities does. `replay` is exact, but needs the weights of every version that a rollout was sampled with; it is
meant for tests. `check_current` needs only the trainer's weights and is cheap enough for every run.

Legend: B rollouts, T tokens, N compared tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from scalerl.core.errors import RunError
from scalerl.core.types import FloatArray, Rollout
from scalerl.training.models.policy import Policy, rounding
from scalerl.training.models.rows import PolicyRows

_ROWS = 8
"""Number of rollouts per forward pass."""


class ReplayMismatch(RunError):
    """An engine samples with other weights than those that were sent."""


class NotFinite(RunError):
    """The log-probabilities of the policy itself are not finite, so nothing can be compared with them."""


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """Difference between an engine's log-probabilities and the recomputed ones.

    Example: Difference(rollouts=16, tokens=4120, largest=2.4e-6, mean=3.1e-7)
    """

    rollouts: int
    tokens: int
    """Number of sampled tokens compared."""
    largest: float
    """Largest |difference|, nats."""
    mean: float
    """Mean |difference|, nats."""
    log_ratios: tuple[FloatArray | None, ...] = ()
    """For each rollout given to `check_current`, of any version: policy minus engine at its sampled tokens (nats); None
    if it was not computed."""


@torch.no_grad()
def replay(policies: Mapping[int, Policy], prompt: Sequence[int], rollout: Rollout, temperature: float = 1.0) -> Tensor:
    """Recompute a rollout's log-probabilities, each token with the weights of its version and the cache so far.

    The keys and values of token t-1 come from the weights that sampled token t, as in an engine that swaps weights
    between two decode steps and keeps the cache.

    Args:
        policies: Policies by version, one for each version in the rollout.
        prompt: Prompt tokens.
        rollout: Rollout to replay.
        temperature: Sampling temperature.

    Returns:
        logp_T, FP32; values at tokens that were not sampled are meaningless.
    """
    from transformers import DynamicCache

    cache, fed, logps = DynamicCache(config=next(iter(policies.values())).config), list(prompt), []
    sets = None if rollout.nucleus is None else np.split(rollout.nucleus[1], np.cumsum(rollout.nucleus[0]))
    for count, (token, version) in enumerate(zip(rollout.tokens.tolist(), rollout.versions.tolist(), strict=True)):
        policy = policies[version]
        tokens_1K = torch.tensor([fed], device=policy.device)
        hidden_1D = policy.hidden(tokens_1K, past_key_values=cache)[0, -1:]
        logits_V = policy.logits(hidden_1D)[0].cpu() / (temperature or 1.0)
        among_V = logits_V if sets is None else logits_V[torch.from_numpy(sets[count]).long()]
        logps.append(logits_V[token] - among_V.logsumexp(-1))
        fed = [token]
    return torch.stack(logps)


def largest_difference(
    policies: Mapping[int, Policy], rollouts: Iterable[tuple[Sequence[int], Rollout]], temperature: float = 1.0
) -> Difference:
    """Replay (prompt, rollout) pairs and compare every sampled token; at least one is needed."""
    parts = []
    for prompt, rollout in rollouts:
        difference_T = (replay(policies, prompt, rollout, temperature) - torch.from_numpy(rollout.logps)).abs()
        parts.append(difference_T[torch.from_numpy(rollout.sampled)])
    return _difference(len(parts), parts)


def check_current(
    policy: Policy,
    version: int,
    rollouts: Iterable[tuple[Sequence[int], Rollout]],
    *,
    temperature: float = 1.0,
    bound: float | None = None,
    most: int = 32,
) -> Difference | None:
    """Compare rollouts of the policy's current version with the policy.

    The trainer has no older weights, and a rollout that spans a swap has a cache of two versions, which one forward
    pass cannot reproduce. Therefore only rollouts whose tokens all have the trainer's version are compared: those
    of evaluations and of on-policy batches. An LM head that was never updated is found at the first evaluation after
    an update that changed it by more than rounding. Rollouts of other versions only get log ratios; if there are no
    others, the difference is that of 0 rollouts.

    Args:
        policy: Policy with the weights of `version`.
        version: Version of the policy's weights.
        rollouts: (prompt, rollout) pairs.
        temperature: Sampling temperature.
        bound: Allowed mean |difference|, nats; None for that of rounding (`models.policy.rounding`).
        most: Maximum number of rollouts to compute, which limits the time.

    Returns:
        The difference; None if no rollout has a sampled token.

    Raises:
        NotFinite: The policy's own log-probabilities are not finite.
        ReplayMismatch: The mean difference exceeds the bound or is NaN.
    """
    given = list(rollouts)
    sampled = [number for number, (_, rollout) in enumerate(given) if rollout.sampled.any()]
    usable = [n for n in sampled if (given[n][1].versions[given[n][1].sampled] == version).all()][:most]
    if not sampled:
        return None
    others = [n for n in sampled if n not in usable][: most - len(usable)]
    computed, parts = [*usable, *others], list[Tensor]()
    for start in range(0, len(computed), _ROWS):
        parts += _differences(policy, [given[number] for number in computed[start : start + _ROWS]], temperature)
    of_rollout = {number: part.numpy() for number, part in zip(computed, parts, strict=True)}
    difference = replace(
        _difference(len(usable), [part.abs() for part in parts[: len(usable)]]),
        log_ratios=tuple(of_rollout.get(number) for number in range(len(given))),
    )
    check_difference(difference, version, rounding(policy.dtype) if bound is None else bound)
    return difference


def check_difference(difference: Difference, version: int, bound: float) -> None:
    """Raise if rounding does not explain a difference.

    Raises:
        ReplayMismatch: The mean exceeds the bound (nats) or is NaN.
    """
    if not difference.mean <= bound:
        raise ReplayMismatch(
            f"the generator's weights are not those that were sent: {difference.tokens} tokens reported as sampled "
            f"with version {version} have log-probabilities {difference.mean:.2g} off those of that version on average "
            f"(largest {difference.largest:.2g}, allowed on average {bound:g}). Do not use its samples"
        )


@torch.no_grad()
def _differences(policy: Policy, rollouts: Sequence[tuple[Sequence[int], Rollout]], temperature: float) -> list[Tensor]:
    """Return the differences at the sampled tokens of each rollout, with one forward pass."""
    width = max(len(prompt) + len(rollout) for prompt, rollout in rollouts)
    tokens_BT = torch.zeros(len(rollouts), width, dtype=torch.long)
    sampled_BT = torch.zeros(len(rollouts), width, dtype=torch.bool)
    for row, (prompt, rollout) in enumerate(rollouts):
        end = len(prompt) + len(rollout)
        tokens_BT[row, :end] = torch.tensor([*prompt, *rollout.tokens.tolist()])
        sampled_BT[row, len(prompt) : end] = torch.from_numpy(rollout.sampled)
    rows = PolicyRows.padded(tokens_BT, sampled_BT, policy.device)
    nucleus = flat_nuclei([(len(prompt), rollout) for prompt, rollout in rollouts], width)
    if nucleus is not None:
        rows = rows.with_nucleus(nucleus, sampled_BT.flatten().nonzero()[:, 0])
    logp_N, _ = policy(rows, temperature or 1.0)
    if not logp_N.isfinite().all():
        raise NotFinite
    engine_logps = [torch.from_numpy(rollout.logps[rollout.sampled]) for _, rollout in rollouts]
    policy_logps = logp_N.cpu().split([len(one) for one in engine_logps])
    return [own_n - other_n for own_n, other_n in zip(policy_logps, engine_logps, strict=True)]


def flat_nuclei(rollouts: Sequence[tuple[int, Rollout]], width: int) -> tuple[Tensor, Tensor] | None:
    """Return (place, id) of every id that a token of a padded batch could be; None without top-p.

    Args:
        rollouts: Pairs of the prompt's length in tokens and the rollout.
        width: T.
    """
    given = [(b * width + start, *r.nucleus) for b, (start, r) in enumerate(rollouts) if r.nucleus is not None]
    if not given:
        return None
    assert len(given) == len(rollouts), f"{len(given)} of {len(rollouts)} rollouts have a nucleus"
    place_M = np.concatenate([first + np.repeat(np.arange(len(sizes)), sizes) for first, sizes, _ in given])
    return torch.from_numpy(place_M), torch.from_numpy(np.concatenate([ids for _, _, ids in given])).long()


def _difference(rollouts: int, parts: Sequence[Tensor]) -> Difference:
    if not parts:
        return Difference(0, 0, 0.0, 0.0)
    all_N = torch.cat(list(parts))
    return Difference(rollouts, len(all_N), float(all_N.max()), float(all_N.double().mean()))
