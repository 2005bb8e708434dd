"""Proof that an engine samples with the weights it says: every log-probability is computed again and compared.

"Outputs changed and nothing was dropped" passes an engine whose LM head silently stayed old; a comparison of
log-probabilities does not. `replay` is exact and needs the weights of every version a rollout was sampled with: it is
for tests. `check_current` needs only the weights the trainer has, and is cheap enough for a run.

Legend: B rollouts, T tokens, N compared tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scalerl.models.policy import Policy
from scalerl.types import FloatArray, Rollout

BOUNDS = {torch.float32: 1e-3}
"""Mean |difference| in nats that rounding explains, by the type of the weights."""

BOUND_OF_ROUNDED_WEIGHTS = 0.1
"""The same for weights in bf16: kernels that add in another order differ by about 0.01 a token."""

_ROWS = 8
"""Rollouts of one forward pass."""


class ReplayMismatch(RuntimeError):
    """The weights that an engine samples with are not those that were sent."""


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """How far an engine's log-probabilities are from those computed again.

    Example: Difference(rollouts=16, tokens=4120, largest=2.4e-6, mean=3.1e-7)
    """

    rollouts: int
    tokens: int
    """Sampled tokens that were compared."""
    largest: float
    """Largest |difference|, nats."""
    mean: float
    """Mean |difference|, nats."""
    log_ratios: tuple[FloatArray | None, ...] = ()
    """For each rollout given to `check_current`, policy minus engine at its sampled tokens (nats), those of other
    versions too; None for one that was not computed."""


@torch.no_grad()
def replay(
    policies: Mapping[int, Policy],
    prompt: Sequence[int],
    rollout: Rollout,
    temperature: float = 1.0,
    restarts: Collection[int] = (),
) -> Tensor:
    """Compute a rollout's log-probabilities again, each token with the weights of its version over the cache so far.

    The keys and values of token t-1 come from the weights that sampled token t, as they do where weights are swapped
    between two decode steps and the cache is kept.

    Args:
        policies: by version, one for each in the rollout.
        prompt: its prompt.
        rollout: with a version a token.
        temperature: of the sampling.
        restarts: numbers of tokens at which the engine began again with an empty cache, as after a broken request.

    Returns:
        logp_T, FP32; those of tokens that were not sampled mean nothing.
    """
    from transformers import DynamicCache

    config = next(iter(policies.values())).config
    cache, fed, logps = DynamicCache(config=config), list(prompt), []
    everything = list(prompt)
    for count, (token, version) in enumerate(zip(rollout.tokens.tolist(), rollout.versions.tolist(), strict=True)):
        if count in restarts:
            cache, fed = DynamicCache(config=config), list(everything)
        policy = policies[version]
        tokens_1K = torch.tensor([fed], device=policy.device)
        hidden_1D = policy.hidden(tokens_1K, past_key_values=cache)[0, -1:]
        logps.append((policy.logits(hidden_1D)[0] / (temperature or 1.0)).log_softmax(-1)[token].cpu())
        fed = [token]
        everything.append(token)
    return torch.stack(logps)


def largest_difference(
    policies: Mapping[int, Policy], rollouts: Iterable[tuple[Sequence[int], Rollout]], temperature: float = 1.0
) -> Difference:
    """Replay rollouts, given with their prompts, and compare every sampled token.

    Raises:
        ValueError: there is nothing to compare.
    """
    parts, count = [], 0
    for prompt, rollout in rollouts:
        difference_T = (replay(policies, prompt, rollout, temperature) - torch.from_numpy(rollout.logps)).abs()
        parts.append(difference_T[torch.from_numpy(rollout.sampled)])
        count += 1
    return _difference(count, parts)


def check_current(
    policy: Policy,
    version: int,
    rollouts: Iterable[tuple[Sequence[int], Rollout]],
    *,
    temperature: float = 1.0,
    bound: float | None = None,
    most: int = 32,
) -> Difference | None:
    """Compare rollouts of the policy's own version with the policy; others have log ratios and no part in the verdict.

    A trainer has no older weights, and a rollout that crossed a swap has a cache of two versions, which one forward
    pass does not have. What remains are rollouts whose tokens all have the trainer's version: those of an evaluation,
    which the trainer waits for, and those of on-policy batches. A head that stayed old is so found at the first
    evaluation after an update that moved it by more than rounding.

    Args:
        policy: with the weights of `version`.
        version: updates they have seen.
        rollouts: with their prompts.
        temperature: of the sampling.
        bound: mean |difference| allowed, nats; None chooses by the type of the weights.
        most: rollouts computed at most, for the time it takes.

    Returns:
        The difference; None if no rollout is of this version.

    Raises:
        ReplayMismatch: the mean difference is beyond the bound, or not a number.
    """
    given = list(rollouts)
    sampled = [number for number, (_, rollout) in enumerate(given) if rollout.sampled.any()]
    usable = [n for n in sampled if (given[n][1].versions[given[n][1].sampled] == version).all()][:most]
    if not usable:
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
    check_difference(difference, version, bound_of(policy.head_weight.dtype) if bound is None else bound)
    return difference


def bound_of(dtype: torch.dtype) -> float:
    """Return the mean |difference| in nats that rounding explains, for weights of a type."""
    return BOUNDS.get(dtype, BOUND_OF_ROUNDED_WEIGHTS)


def check_difference(difference: Difference, version: int, bound: float) -> None:
    """Refuse a difference that rounding does not explain.

    Raises:
        ReplayMismatch: the mean is beyond the bound (nats), or not a number.
    """
    if not difference.mean <= bound:
        raise ReplayMismatch(
            f"the generator's weights are not what was sent: {difference.tokens} tokens that it says it sampled with "
            f"version {version} have log-probabilities {difference.mean:.2g} off those of that version on average "
            f"(largest {difference.largest:.2g}, allowed on average {bound:g}). Nothing that it samples can be trusted"
        )


@torch.no_grad()
def _differences(policy: Policy, rollouts: Sequence[tuple[Sequence[int], Rollout]], temperature: float) -> list[Tensor]:
    """Return the differences at the sampled tokens of each of a few rollouts, by one forward pass."""
    width = max(len(prompt) + len(rollout) for prompt, rollout in rollouts)
    tokens_BT = torch.zeros(len(rollouts), width, dtype=torch.long)
    sampled_BT = torch.zeros(len(rollouts), width, dtype=torch.bool)
    for row, (prompt, rollout) in enumerate(rollouts):
        end = len(prompt) + len(rollout)
        tokens_BT[row, :end] = torch.tensor([*prompt, *rollout.tokens.tolist()])
        sampled_BT[row, len(prompt) : end] = torch.from_numpy(rollout.sampled)
    logp_N, _ = policy(tokens_BT.to(policy.device), sampled_BT.to(policy.device), temperature or 1.0)
    theirs = [torch.from_numpy(rollout.logps[rollout.sampled]) for _, rollout in rollouts]
    ours = logp_N.cpu().split([len(one) for one in theirs])
    return [own_n - other_n for own_n, other_n in zip(ours, theirs, strict=True)]


def _difference(rollouts: int, parts: Sequence[Tensor]) -> Difference:
    all_N = torch.cat(list(parts)) if parts else torch.empty(0)
    if not len(all_N):
        raise ValueError("no sampled token to compare")
    return Difference(rollouts, len(all_N), float(all_N.max()), float(all_N.double().mean()))
