"""The recipe, in order: prompts -> rollouts -> rewards -> advantages -> loss -> update -> evaluation point.

Everything that takes time or lives in another process is inside the objects it is asked of; asynchrony is behind
`pipeline.take`. Legend: P prompts, G rollouts a prompt, B = P x G, T tokens.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict

import torch
from torch import Tensor

from scalerl.config.base import replace as with_changes
from scalerl.config.recipe import LengthPenalty, PipelineRL, max_lag
from scalerl.learn.advantages import ADVANTAGES, ZERO_VARIANCE
from scalerl.learn.aggregate import AGGREGATIONS
from scalerl.learn.losses import LOSSES
from scalerl.learn.penalty import with_length_penalty
from scalerl.rollouts.coordinator import RolloutBatch
from scalerl.train.batch import Batch, collate
from scalerl.train.learner.single import BadGradient, UpdateStats
from scalerl.train.metrics import TokenMeter, rollout_row, staleness
from scalerl.train.session import Session


class TrainingFailed(RuntimeError):
    """The run had to stop; the message says why and what is saved."""


def train(run: Session) -> None:
    """Train until the budget, the prompts or the user's patience end; rows, points and checkpoints go to disk.

    Raises:
        TrainingFailed: the loss or gradient was not finite.
        WorkerDied, Interrupted, RewardError: from the parts; the last checkpoint is untouched.
    """
    recipe, progress = run.config.recipe, run.progress
    while progress.step < run.config.steps and not progress.exhausted and not run.stop_requested():
        began = time.perf_counter()

        # prompts -> rollouts: PipelineRL-k or PPO-off-policy-k; the engine interrupts thinking that runs too long
        taken = run.pipeline.take(recipe.prompts_per_step, now=progress.step, max_lag=max_lag(recipe.off_policy))
        rollouts = collate(taken.groups)

        # rollouts -> rewards; truncated ones have failed
        scores = run.score(taken.groups)
        shape = (len(taken.groups), recipe.generations_per_prompt)
        rewards_PG = torch.tensor([s.reward for s in scores]).view(shape)
        passed_PG = torch.tensor([s.passed for s in scores]).view(shape)
        if isinstance(recipe.length, LengthPenalty):
            tokens_PG = (rollouts.length_B - rollouts.prompt_length_B).view(shape)
            rewards_PG = with_length_penalty(rewards_PG, passed_PG, tokens_PG, recipe.length)

        # pass rates -> curriculum: No-Positive-Resampling retires the prompts now solved
        for group, rate in zip(taken.groups, passed_PG.float().mean(dim=1).tolist(), strict=True):
            run.curriculum.record(group.visit, rate)

        # rewards -> advantages, normalised before prompts without variance are dropped
        advantages_B = ADVANTAGES[recipe.advantage](rewards_PG).view(-1)
        keep_P = ZERO_VARIANCE[recipe.zero_variance](rewards_PG)

        # what is trained -> token weights that sum to one, whatever was filtered
        trained_B = keep_P[rollouts.prompt_B]
        if recipe.truncated == "exclude":
            trained_B = trained_B & ~rollouts.truncated_B
        trained_BT = rollouts.sampled_BT & trained_B[:, None]
        weights_BT = AGGREGATIONS[recipe.aggregation](trained_BT, rollouts.prompt_B)

        # advantages -> loss -> update
        if run.config.rollouts.lag_ticks < 0:
            _measure_lag(run, taken, rollouts, advantages_B, trained_BT, weights_BT)
        meter = _add_gradients(run, rollouts, advantages_B, trained_BT, weights_BT)
        update = _update(run, rollouts, advantages_B, meter)

        # new weights -> generator, in flight, with the next prompts
        row = {
            **rollout_row(rollouts, rewards_PG, passed_PG, keep_P),
            **staleness(rollouts, progress.step),
            **meter.row(),
            **asdict(update),
        }
        progress.step += 1
        progress.trained_groups += len(taken.groups)
        run.publish()
        run.record_step(taken, row, step_s=time.perf_counter() - began)

        # update -> evaluation point, checkpoint
        if progress.step % run.config.evaluation.every == 0 or _last(run):
            run.record_samples(taken.groups, scores)
            run.evaluate()
        if progress.step % run.config.checkpoint.every == 0 or _last(run):
            run.checkpoint()
        run.commit_checkpoints()


def _add_gradients(
    run: Session, rollouts: Batch, advantages_B: Tensor, trained_BT: Tensor, weights_BT: Tensor
) -> TokenMeter:
    """Add the batch's gradient, micro-batch by micro-batch; the weights make the split irrelevant."""
    recipe, learner, meter = run.config.recipe, run.learner, TokenMeter()
    loss_fn, device = LOSSES[recipe.loss.kind], learner.policy.device
    trained_B = trained_BT.any(dim=1)
    for rows, width in rollouts.micro_batches(run.config.learner.micro_batch_tokens, trained_B):
        mask_bt = trained_BT[rows, :width].to(device)
        logp_n, entropy_n = learner.logprobs(rollouts.tokens_BT[rows, :width].to(device), mask_bt)
        behavior_bt = rollouts.behavior_BT[rows, :width].to(device)
        logp_bt = torch.zeros_like(behavior_bt).masked_scatter(mask_bt, logp_n)
        loss_bt, capped_bt = loss_fn(recipe.loss, logp_bt, behavior_bt, advantages_B[rows].to(device), mask_bt)
        loss = (loss_bt * weights_BT[rows, :width].to(device)).sum()
        try:
            learner.backward(loss)
        except BadGradient as error:
            raise _failed(run, rollouts, advantages_B, error) from None
        meter.add(loss, (logp_n.detach() - behavior_bt[mask_bt]), capped_bt[mask_bt], entropy_n)
    lengths = rollouts.length_B[trained_B].tolist()
    shape, checkpointing = learner.policy.shape, run.config.learner.gradient_checkpointing
    run.progress.training_flops += sum(shape.training_flops(n, checkpointing) for n in lengths)
    return meter


def _update(run: Session, rollouts: Batch, advantages_B: Tensor, meter: TokenMeter) -> UpdateStats:
    if not meter.tokens:
        run.progress.skipped_steps += 1
        run.display.note(
            f"step {run.progress.step + 1}: no prompt had any variance in its rewards; the update is skipped"
        )
        return run.learner.skip()
    try:
        return run.learner.step()
    except BadGradient as error:
        raise _failed(run, rollouts, advantages_B, error) from None


def _failed(run: Session, rollouts: Batch, advantages_B: Tensor, error: BadGradient) -> TrainingFailed:
    where = run.save_bad_batch(rollouts, advantages_B)
    run.commit_checkpoints(wait=True)
    latest = run.checkpoints.latest()
    return TrainingFailed(
        f"step {run.progress.step + 1}: {error}. The batch is saved in {where}; the last good checkpoint is "
        f"{latest or 'the start'}. A lower recipe.optimizer.learning_rate is the usual remedy"
    )


def _last(run: Session) -> bool:
    return run.progress.step >= run.config.steps or run.progress.exhausted


def _measure_lag(
    run: Session, taken: RolloutBatch, rollouts: Batch, advantages_B: Tensor, trained_BT: Tensor, weights_BT: Tensor
) -> None:
    """Set the lag in ticks from the first batch's timing, and write it into the run's configuration for good.

    The lag must cover the longer of an update's time and a batch's generation, so that neither side waits for the
    other; half as much again absorbs the variation of both.
    """
    recipe = run.config.recipe
    lag = 0
    if isinstance(recipe.off_policy, PipelineRL) and run.config.rollouts.schedule == "deterministic":
        flops = run.progress.training_flops
        for _ in range(2):  # the first pass warms up memory and caches
            began = time.perf_counter()
            _add_gradients(run, rollouts, advantages_B, trained_BT, weights_BT)
            run.learner.discard_gradient()
        update_ticks = (time.perf_counter() - began) / (taken.stats.busy_s / taken.stats.tick)
        batch_ticks = float((rollouts.length_B - rollouts.prompt_length_B).sum()) / run.config.slots
        lag = math.ceil(1.5 * max(update_ticks, batch_ticks))
        run.progress.training_flops = flops
    run.config = with_changes(run.config, rollouts=with_changes(run.config.rollouts, lag_ticks=lag))
    run.directory.save_config(run.config)
