"""The columns of metrics.jsonl: groups, labels, meanings, units and thresholds, for run.json and the warnings."""

from __future__ import annotations

from scalerl.core.run_files import Metric

WARN_TRUNCATION, UNSTABLE_TRUNCATION = 0.05, 0.10
"""Shares of truncated rollouts above which a warning is shown; above the second, the paper's runs became unstable."""

LOW = 0.7
"""Occupancy below which a warning is shown; a decode step costs nearly the same with empty slots as with full ones."""

MISMATCH_WARNING = 0.05
"""Mean |log ratio| for the same weights, nats, above which a warning is shown: three times the mean error of logits of
8 to 16 that are rounded to bf16 (spacing 1/16, mean error 1/64), so more than a missing FP32 head explains."""

LEAST_EFFECTIVE = 0.5
"""Effective share of the tokens below which a warning is shown; half is the usual bound (Liu and Chen 1995)."""

METRICS = {
    "pass_rate": Metric(
        "learning", "Pass rate of the batch", "share of the batch's rollouts that passed", share=True, main=True
    ),
    "answer_in_prompt": Metric(
        "learning", "Answer in the prompt", "share of the batch's passes whose answer stands in its prompt", share=True
    ),
    "answer_box": Metric("learning", "Answers in a box", "share of the batch's answers found in a box", share=True),
    "answer_tag": Metric("learning", "Answers in a tag", "share found in a tag such as <answer>", share=True),
    "answer_hashes": Metric("learning", "Answers after ####", "share found after ####", share=True),
    "answer_phrase": Metric("learning", "Answers in a phrase", "share found after 'the answer is'", share=True),
    "answer_none": Metric("learning", "Answers without a form", "share whose last expression counts", share=True),
    "answer_unread": Metric("learning", "Unread answers", "share that could only be compared as text", share=True),
    "reward": Metric("learning", "Reward", "mean reward of the batch, including the length penalty"),
    "kept_prompts": Metric(
        "learning", "Kept prompts", "prompts whose rewards differ; only these are trained on", main=True
    ),
    "prompts": Metric("learning", "Prompts", "prompts in the batch"),
    "entropy": Metric(
        "learning", "Entropy", "mean entropy of the policy at trained tokens; near 0 it no longer explores", "nats",
        main=True,
    ),
    "kl": Metric(
        "learning", "KL from the start", "mean estimate at trained tokens, with recipe.kl_coefficient", "nats"
    ),
    "grad_norm": Metric("learning", "Gradient norm", "L2 norm before clipping; 0 for a skipped step", main=True),
    "loss": Metric("learning", "Loss", "aggregated loss; it must be finite, and its level means little"),
    "learning_rate": Metric("learning", "Learning rate", "learning rate of the step; 0 for a skipped step"),
    "trained_tokens": Metric("learning", "Trained tokens", "tokens that entered the loss", "tokens"),
    "epoch": Metric("learning", "Epoch", "number of epochs of the prompt pool started so far"),
    "retired_prompts": Metric("learning", "Retired prompts", "solved prompts that are no longer drawn, so far"),
    "staleness_mean": Metric(
        "staleness", "Staleness, mean", "updates from the weights that sampled a token to the update that trains on it",
        "updates",
    ),
    "staleness_max": Metric("staleness", "Staleness, largest", "staleness of the oldest token in the batch", "updates"),
    "stale_share": Metric(
        "staleness", "Too stale", "share of sampled tokens that are older than k and carry no loss", share=True
    ),
    "log_ratio_mean": Metric(
        "staleness", "Log ratio, mean", "mean log probability ratio trainer / generator over trained tokens", "nats"
    ),
    "log_ratio_min": Metric(
        "staleness", "Log ratio, minimum", "smallest log ratio of a token, less likely under the trainer", "nats"
    ),
    "log_ratio_max": Metric(
        "staleness", "Log ratio, maximum", "largest log ratio of a token, more likely under the trainer", "nats"
    ),
    "log_ratio_fresh": Metric(
        "staleness", "|Log ratio|, same weights",
        "mean |log ratio| of tokens that, with their context, are of the trainer's own weights: the engine's mismatch",
        "nats", above=(MISMATCH_WARNING,),
    ),
    "log_ratio_stale": Metric(
        "staleness", "|Log ratio|, older weights",
        "mean |log ratio| of tokens that older weights sampled, or whose context they computed", "nats",
    ),
    "effective_samples": Metric(
        "staleness", "Effective samples", "effective sample size of the ratios, as a share of the trained tokens",
        below=(LEAST_EFFECTIVE,), share=True,
    ),
    "corrected_share": Metric("staleness", "Corrected", "share of tokens that recipe.mismatch changed", share=True),
    "capped_share": Metric(
        "staleness", "Capped", "share of trained tokens whose ratio was capped or clipped", share=True
    ),
    "router_disagreement": Metric(
        "staleness", "Router disagreement",
        "mixtures of experts: share of tokens and layers whose experts differ between generation and training",
        share=True,
    ),
    "dropped_groups": Metric("staleness", "Dropped groups", "groups that no update could train on in time, so far"),
    "replay_difference": Metric(
        "staleness", "Replay difference",
        "largest difference between log-probabilities of the engine and of the trainer at the last evaluation; with "
        "`evaluation.overlap` it is in points.jsonl", "nats",
    ),
    "completion_tokens_mean": Metric(
        "lengths", "Length, mean", "mean length of the batch's completions", "tokens", main=True
    ),
    "completion_tokens_max": Metric("lengths", "Length, longest", "length of the batch's longest completion", "tokens"),
    "truncation_rate": Metric(
        "lengths", "Truncated", "share of rollouts of which a turn reached its length limit, which counts as failed",
        above=(WARN_TRUNCATION, UNSTABLE_TRUNCATION), share=True, main=True,
    ),
    "interruption_rate": Metric(
        "lengths", "Interrupted", "share of rollouts whose thinking was ended by the phrase", share=True
    ),
    "turns": Metric("lengths", "Turns", "environments: mean number of turns of the policy in a rollout"),
    "tool_calls": Metric("lengths", "Tool calls", "environments: mean number of results of tools in a rollout"),
    "observed_tokens": Metric(
        "lengths", "Observed", "environments: mean length of all replies in a rollout", "tokens"
    ),
    "reply_wait_s": Metric(
        "speed", "Wait for replies", "environments: mean time that a rollout waited for replies", "s"
    ),
    "step_s": Metric("speed", "Step", "wall-clock time of the step", "s"),
    "generator_tokens_per_s": Metric("speed", "Generator", "tokens sampled per second", "tokens/s"),
    "trainer_tokens_per_s": Metric("speed", "Trainer", "tokens trained per second, without waiting", "tokens/s"),
    "swap_ms": Metric("speed", "Weight swap", "duration of the generator's last weight swap", "ms"),
    "scoring_wait_s": Metric("speed", "Wait for scores", "time that the step waited for verifiers", "s"),
    "device_hours": Metric("speed", "Device-hours", "number of devices times training time, so far", "h"),
    "flops": Metric("speed", "FLOPs", "floating-point operations of training and generation, so far"),
    "tokens": Metric("speed", "Tokens", "tokens generated for training, so far", "tokens"),
    "occupancy": Metric(
        "occupancy", "Busy slots", "share of the engines' slots that were decoding", below=(LOW,), share=True
    ),
    "parked": Metric("occupancy", "Parked", "environments: mean number of sequences that wait for a reply"),
    "generator_idle": Metric(
        "occupancy", "Generator idle", "share of time that the generator waited for weights or prompts", share=True,
        main=True,
    ),
    "trainer_idle": Metric(
        "occupancy", "Trainer idle", "share of the step that the trainer waited for the batch", share=True, main=True,
    ),
    "engine_restarts": Metric(
        "occupancy", "Engine restarts", "engines that died and were restarted, so far", above=(0.0,)
    ),
    "resampled": Metric("occupancy", "Resampled", "sequences sampled again because their engine died, so far"),
    "verifier_timeouts": Metric(
        "occupancy", "Verifier timeouts", "completions whose verifier was stopped by its timeout, so far", above=(0.0,)
    ),
    "reward_failures": Metric(
        "occupancy", "Reward failures",
        "completions without a reward because the verifier or the environment failed, so far",
        above=(0.0,),
    ),
}  # fmt: skip
"""Every column except `step`, in display order."""
