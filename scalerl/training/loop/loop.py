"""The recipe, in order: prompts -> rollouts -> rewards -> advantages -> loss -> update -> evaluation point.

Generation runs asynchronously in other processes; `pipeline.take` returns its batches.
Legend: P prompts, G rollouts per prompt, K turns with a reward of their own, B rows (sequences: one of each rollout, or
several with agents), T tokens.
"""

from __future__ import annotations

import time

from torch import Tensor

from scalerl.core.errors import ConfigError
from scalerl.training.config.length import LengthPenalty
from scalerl.training.config.recipe import OffPolicy, Recipe
from scalerl.training.learner.base import BadGradient
from scalerl.training.learner.batch import RolloutTensors, StepSettings, TrainBatch, collate
from scalerl.training.learner.metrics import StepStats
from scalerl.training.learner.policy_learner import batch_flops
from scalerl.training.loop.credit import Credited, credited
from scalerl.training.loop.due import evaluate_if_due
from scalerl.training.loop.metrics import batch_row, record_step, staleness, why_untrained
from scalerl.training.loop.run import Run, publish, record_pass_rates
from scalerl.training.loop.saved import failure, save_if_due
from scalerl.training.recipe.advantages import ZERO_VARIANCE, advantages, of_trained
from scalerl.training.recipe.aggregate import token_weights
from scalerl.training.recipe.penalty import with_length_penalty


def train(run: Run) -> None:
    """Train until the steps are done, all prompts are retired or a stop is requested; write to the run directory.

    Raises:
        TrainingFailed: The loss or gradient was not finite.
        WorkerDied, LearnerDied, Interrupted, RewardError: From the parts; the last checkpoint is unchanged.
    """
    recipe = run.config.recipe
    while not run.finished and not run.stop_requested():
        began, now, before = time.perf_counter(), run.progress.step, run.progress.generator

        # prompts -> rollouts and their rewards: PipelineRL-k or PPO-off-policy-k, verifiers in parallel with training
        taken = run.pipeline.take(recipe.prompts_per_step, now=now)
        rollouts = collate(taken.groups)
        rewards_PG = rollouts.rewards_PG
        if isinstance(recipe.length, LengthPenalty):
            rewards_PG = with_length_penalty(rewards_PG, rollouts.passed_PG, rollouts.sampled_PG, recipe.length)

        # pass rates -> curriculum: No-Positive-Resampling retires the solved prompts
        record_pass_rates(run, taken, rollouts)

        # rewards -> advantages of rollouts or turns, normalized before prompts without variance are dropped
        turns = credited(taken.groups, rollouts, rewards_PG, recipe.turn_credit)
        advantages_B = turns.of_tokens(advantages(recipe.advantage, turns.rewards_PKG, turns.counted_PKG))
        check_versions(rollouts, recipe.off_policy, now)
        usable_BT = loss_tokens(rollouts, recipe, oldest=now - recipe.off_policy.max_lag)
        keep_P = kept_prompts(turns, usable_BT, recipe)

        # trained tokens -> token weights that sum to one after filtering
        trained_BT = usable_BT & keep_P[rollouts.prompt_B][:, None]
        weights_BT = token_weights(recipe.aggregation, trained_BT, rollouts.prompt_B, rollouts.rollout_B)

        # advantages -> loss -> update
        settings = StepSettings(version=now, idle_cores=run.generators_idle)
        stats = update(run, TrainBatch(rollouts, advantages_B, trained_BT, weights_BT, settings))
        untrained = "" if stats.trained_tokens else why_untrained(rollouts, usable_BT)
        if untrained:
            skip(run, untrained)

        # new weights -> engines, during generation, with the next prompts
        publish(run, taken)
        ages = staleness(rollouts, now, recipe.off_policy)
        row = {**batch_row(rollouts, rewards_PG, keep_P), **ages, **stats.to_dict()}
        record_step(run, taken, row, before, step_s=time.perf_counter() - began)
        if untrained and not usable_BT.any():
            check_hope(run, untrained)

        # update -> evaluation point, checkpoint
        evaluate_if_due(run, taken)
        save_if_due(run)


def update(run: Run, batch: TrainBatch) -> StepStats:
    """Perform one update.

    Raises:
        TrainingFailed: The loss or gradient was not finite; the batch is saved.
    """
    try:
        stats = run.learner.step(batch)
    except BadGradient as error:
        raise failure(run, error, batch) from None
    reference = run.config.recipe.kl_coefficient > 0
    run.progress.training_flops += batch_flops(
        run.sizes, batch, run.config.learner.gradient_checkpointing is True, reference
    )
    run.progress.step += 1
    return stats


def skip(run: Run, reason: str) -> None:
    """Count the latest update as skipped because no token could be trained, and say why."""
    run.progress.skipped_steps += 1
    run.records.display.note(f"step {run.progress.step}: {reason}; the update is skipped")


def check_hope(run: Run, reason: str) -> None:
    """End a run whose first updates had no rollout that can carry loss: its weights, and so its rollouts, stay as is.

    Raises:
        ConfigError: `HOPELESS` updates, all so far, were skipped.
    """
    progress, recipe = run.progress, run.config.recipe
    if progress.step == progress.skipped_steps == HOPELESS:
        raise ConfigError(
            f"the first {HOPELESS} updates trained nothing: {reason}. Allow longer answers (recipe.length.max_tokens, "
            f"{recipe.length.max_tokens}), train truncated ones too (recipe.truncated = 'keep'; it is "
            f"{recipe.truncated!r}), or take a model that ends its answers; then start a new run"
        )


HOPELESS = 3
"""Number of skipped updates at the start after which a run ends."""


def check_versions(rollouts: RolloutTensors, off_policy: OffPolicy, now: int) -> None:
    """Assert what the schedule and the engines guarantee: no token is of later weights, or too old unless masked."""
    version_N = rollouts.version_BT[rollouts.sampled_BT]
    allowed_N = (version_N <= now) & (off_policy.masks | (version_N >= now - off_policy.max_lag))
    assert allowed_N.all(), f"version {version_N[~allowed_N][0]} at update {now}; the bound is {off_policy.max_lag}"


def loss_tokens(rollouts: RolloutTensors, recipe: Recipe, oldest: int) -> Tensor:
    """Return usable_BT: the tokens that may carry loss, before prompts are filtered.

    These are sampled tokens, not too old, of rollouts with a reward that were not truncated (`recipe.truncated`).

    Args:
        rollouts: Rollouts of the batch.
        recipe: Recipe, whose `truncated` determines whether truncated rollouts carry loss.
        oldest: Oldest version of the weights whose tokens carry loss.
    """
    usable_B = rollouts.counted_PG.view(-1)[rollouts.rollout_B]
    if recipe.truncated == "exclude":
        usable_B = usable_B & ~rollouts.truncated_B
    return rollouts.sampled_BT & usable_B[:, None] & (rollouts.version_BT >= oldest)


def kept_prompts(turns: Credited, usable_BT: Tensor, recipe: Recipe) -> Tensor:
    """Return keep_P: prompts that the zero-variance filter keeps, judged by the turns with usable tokens."""
    return ZERO_VARIANCE[recipe.zero_variance](of_trained(turns.rewards_PKG, turns.turns_with(usable_BT)))
