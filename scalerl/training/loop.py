"""The recipe, in order: prompts -> rollouts -> rewards -> advantages -> loss -> update -> evaluation point.

Generation runs asynchronously in other processes; `pipeline.take` returns its batches.
Legend: P prompts, G rollouts per prompt, B = P x G, T tokens.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from scalerl.config.recipe import LengthPenalty, Recipe
from scalerl.learn.advantages import ZERO_VARIANCE, advantages, of_trained
from scalerl.learn.aggregate import token_weights
from scalerl.learn.penalty import with_length_penalty
from scalerl.training.batch import RolloutTensors, collate, rollout_row, staleness
from scalerl.training.learner.base import TrainBatch
from scalerl.training.session import Session


def train(run: Session) -> None:
    """Train until the steps are done, all prompts are retired or a stop is requested; write to the run directory.

    Raises:
        TrainingFailed: The loss or gradient was not finite.
        WorkerDied, LearnerDied, Interrupted, RewardError: From the parts; the last checkpoint is unchanged.
    """
    recipe = run.config.recipe
    while not run.finished and not run.stop_requested():
        began, now = time.perf_counter(), run.progress.step

        # prompts -> rollouts and their rewards: PipelineRL-k or PPO-off-policy-k, verifiers in parallel with training
        taken = run.pipeline.take(recipe.prompts_per_step, now=now)
        rollouts = collate(taken.groups)
        rewards_PG = rollouts.rewards_PG
        if isinstance(recipe.length, LengthPenalty):
            lengths_PG = rollouts.completion_tokens_PG
            rewards_PG = with_length_penalty(rewards_PG, rollouts.passed_PG, lengths_PG, recipe.length)

        # pass rates -> curriculum: No-Positive-Resampling retires the solved prompts
        run.record_pass_rates(taken, rollouts.passed_PG)

        # rewards -> advantages, normalized before prompts without variance are dropped
        advantages_B = advantages(recipe.advantage, rewards_PG).view(-1)
        keep_P = kept_prompts(rollouts, rewards_PG, recipe)

        # trained tokens -> token weights that sum to one after filtering
        trained_BT = trained_tokens(rollouts, keep_P, recipe, oldest=now - recipe.off_policy.max_lag)
        weights_BT = token_weights(recipe.aggregation, trained_BT, rollouts.prompt_B)

        # advantages -> loss -> update
        stats = run.update(
            TrainBatch(
                rollouts.tokens_BT,
                rollouts.length_B,
                rollouts.behavior_BT,
                advantages_B,
                trained_BT,
                weights_BT,
                rollouts.experts_BTLK,
                replay_experts=recipe.routing_replay == "on",
                mismatch=recipe.mismatch,
                stale_BT=rollouts.version_BT < now,
                nucleus=rollouts.nucleus,
                prompt_B=rollouts.prompt_B,
                prompt_length_B=rollouts.prompt_length_B,
                idle_cores=run.generators_idle,
            )
        )

        # new weights -> engines, during generation, with the next prompts
        run.publish(taken)
        ages = staleness(rollouts, now, recipe.off_policy)
        row = {**rollout_row(rollouts, rewards_PG, keep_P), **ages, **stats.to_dict()}
        run.records.step(taken, row, step_s=time.perf_counter() - began)

        # update -> evaluation point, checkpoint
        run.evaluate_if_due(taken)
        run.checkpoint_if_due()


def may_be_trained(rollouts: RolloutTensors, recipe: Recipe) -> Tensor:
    """Return which rollouts may carry loss: all, or those that were not truncated (`recipe.truncated`)."""
    return ~rollouts.truncated_B if recipe.truncated == "exclude" else torch.ones_like(rollouts.truncated_B)


def kept_prompts(rollouts: RolloutTensors, rewards_PG: Tensor, recipe: Recipe) -> Tensor:
    """Return keep_P: prompts that the zero-variance filter keeps, judged by the rollouts that may carry loss."""
    usable_PG = may_be_trained(rollouts, recipe).view_as(rewards_PG)
    return ZERO_VARIANCE[recipe.zero_variance](of_trained(rewards_PG, usable_PG))


def trained_tokens(rollouts: RolloutTensors, keep_P: Tensor, recipe: Recipe, oldest: int) -> Tensor:
    """Return trained_BT: sampled tokens of kept prompts, without truncated rollouts and tokens that are too old.

    Args:
        rollouts: Rollouts of the batch.
        keep_P: Prompts that the zero-variance filter keeps.
        recipe: Recipe, whose `truncated` determines whether truncated rollouts carry loss.
        oldest: Oldest version of the weights whose tokens carry loss.
    """
    trained_B = keep_P[rollouts.prompt_B] & may_be_trained(rollouts, recipe)
    return rollouts.sampled_BT & trained_B[:, None] & (rollouts.version_BT >= oldest)
