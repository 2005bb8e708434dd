"""What a run uses where its configuration leaves the choice open: functions of the configuration alone.

`resolve` and `sized` write the results into the configuration that a run saves; plans call these functions for
configurations that they only consider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from scalerl.config.data import CustomTask, is_suite, shares
from scalerl.config.model import HuggingFaceModel
from scalerl.config.run import RunConfig

if TYPE_CHECKING:
    from scalerl.models.build import PolicySpec

CPU_MICRO_BATCH = 1280
"""Default tokens of a micro-batch on CPU."""
FULL_SLOTS = 256
"""Number of sequences above which the cost of a decode step grows (a tiny model on one CPU core)."""
EXPECTED_LENGTH = 0.4
"""Default ratio of the mean length of completions to the length limit (0.4 in the lab)."""


def expected_tokens(config: RunConfig) -> int:
    """Expected mean length of a completion."""
    expected = config.rollouts.expected_tokens
    return max(1, round(EXPECTED_LENGTH * config.recipe.length.max_tokens)) if expected == "auto" else expected


def schedule_name(config: RunConfig) -> Literal["deterministic", "eager"]:
    """The schedule by which new weights become active."""
    steps_together = config.placement.deterministic and not config.has_agents
    return "deterministic" if config.rollouts.schedule == "auto" and steps_together else "eager"


def channel_name(config: RunConfig) -> str:
    """The weight channel; for `auto` before `resolve`, that of machines with vLLM everywhere."""
    shared = config.placement.gpus == 1 and config.placement.backend == "local"
    chosen = config.rollouts.weights
    return chosen if chosen != "auto" else channel_choice(config, shared, vllm=True)[0]


def channel_choice(config: RunConfig, shared: bool, vllm: bool, unable: str = "") -> tuple[str, str]:
    """Return the weight channel for `auto`, and the reason if vLLM servers on GPUs get files instead of NCCL.

    `shared`: engines use the trainer's GPUs. `vllm`: the trainer's environment has vLLM. `unable`: why vLLM cannot load
    adapters of this model; empty: it can.
    """
    rounds, reason = config.recipe.off_policy, ""
    if config.placement.engine == "vllm" and config.lora and not config.merged_because(unable):
        return "adapters", ""
    if config.placement.engine != "vllm" or config.hardware.device == "cpu":
        return config.placement.channels[0], ""
    if config.placement.servers:
        reason = "servers given by address take weights as their command line says"
    elif shared:
        reason = "an engine shares the trainer's GPU, and NCCL needs one for each process"
    elif not vllm:
        reason = "NCCL needs vLLM in the trainer's environment too"
    elif rounds.max_lag and not rounds.streams:
        reason = f"servers hold one version, and {rounds.kind} needs older ones"
    return "directory" if reason else "nccl", reason


def trains_in_loop(config: RunConfig) -> bool:
    """Whether the process of the loop is the trainer; otherwise trainer ranks are processes or actors."""
    # on a cluster, the loop's process has no GPU; a transfer over NCCL that hangs ends only with its process
    far = config.placement.backend == "ray" and config.hardware.device == "cuda"
    return config.placement.trainer_ranks == 1 and not far and channel_name(config) != "nccl"


def loop_device(config: RunConfig) -> str:
    """The device on which the process of the loop loads the model."""
    return config.hardware.device if trains_in_loop(config) else "cpu"


def micro_batch_tokens(config: RunConfig) -> int:
    """Tokens per forward and backward pass."""
    tokens = config.learner.micro_batch_tokens
    return (CPU_MICRO_BATCH if config.hardware.device == "cpu" else 16_384) if tokens == "auto" else tokens


def recomputes(config: RunConfig) -> bool:
    """Whether activations are recomputed; false for `auto` before its resolution (cluster/sizing.py)."""
    return config.learner.gradient_checkpointing is True


def policy_spec(config: RunConfig, path: str) -> PolicySpec:
    """Return the policy of a run as its processes load it from a directory, or from the hub by name."""
    from scalerl.models.build import PolicySpec

    adapters, vllm = config.rollouts.weights == "adapters", config.placement.engine == "vllm"
    return PolicySpec(
        path=path,
        revision=config.model.revision if isinstance(config.model, HuggingFaceModel) else "main",
        dtype=config.hardware.dtype,
        fp32_head=config.recipe.fp32_head,
        lora=config.lora,
        seed=config.seed,
        sent="adapters" if adapters else "checkpoint" if vllm else "model",  # vLLM expects the names of a checkpoint
    )


@dataclass(frozen=True, slots=True)
class Generation:
    """Sizes and seed of the generators, and when they use new weights.

    Example (the lab): Generation(slots=256, expected_tokens=28, schedule="deterministic", lag_ticks=42,
                                  lag_follows=True, ahead=1, evaluated_sequences=1024, seed=0)
    """

    slots: int
    """Sequences decoded together by all generators."""
    expected_tokens: int
    """Expected mean length of a completion."""
    schedule: Literal["deterministic", "eager"]
    """Whether new weights become active at a tick that the data determine, or as soon as they arrive."""
    lag_ticks: int
    """Decode steps from a batch to the use of its weights."""
    lag_follows: bool
    """Whether `lag_ticks` is only the first value, and follows the steps of recent batches."""
    ahead: int
    """Complete batches that may wait for the trainer while an eager schedule goes on."""
    evaluated_sequences: int
    """Sequences of an evaluation."""
    seed: int


def generation_of(config: RunConfig) -> Generation:
    """Return the sizes and schedule of a configuration.

    New weights of a deterministic schedule become active 1.5 times the steps of a batch after it: if both sides are
    balanced, an update takes as long as a batch, and the factor 1.5 absorbs the variation of both.
    """
    slots, expected, schedule = slots_of(config), expected_tokens(config), schedule_name(config)
    lags = config.recipe.off_policy.streams and schedule == "deterministic"
    return Generation(
        slots=slots,
        expected_tokens=expected,
        schedule=schedule,
        lag_ticks=math.ceil(1.5 * config.recipe.completions_per_step * expected / slots) if lags else 0,
        lag_follows=lags and config.rollouts.expected_tokens == "auto",  # lengths are not known before the run
        ahead=config.rollouts.ahead,
        evaluated_sequences=config.evaluated_sequences(),
        seed=config.seed,
    )


def slots_of(config: RunConfig) -> int:
    """Sequences decoded together by all generators; for "auto" before its resolution, as many as the schedule wants.

    A decode step of a few sequences costs nearly as much as one of many, so several small batches are decoded
    together. The longest sequence should span at most k + 1 updates: with more slots, `wait` leaves slots empty,
    and `mask` and `drop` lose the tokens that are too old.
    """
    if config.rollouts.slots != "auto":
        return config.rollouts.slots
    batch, share = config.recipe.completions_per_step, expected_tokens(config) / config.recipe.length.max_tokens
    return max(batch, config.placement.engines, min(FULL_SLOTS, int(kept_busy(config, share))))


def kept_busy(config: RunConfig, mean_share: float) -> float:
    """Slots that the schedule keeps busy while the longest sequence is generated: k + 1 batches are in flight.

    `mean_share`: mean length of completions divided by the longest one.
    """
    return (config.recipe.off_policy.max_lag + 1) * mean_share * config.recipe.completions_per_step


def expected_occupancy(config: RunConfig) -> float:
    """Approximate share of the slots that the schedule can keep busy (docs/recipe.md)."""
    if not config.recipe.off_policy.waits:
        return 1.0
    return min(1.0, kept_busy(config, expected_tokens(config) / config.recipe.length.max_tokens) / slots_of(config))


class Pool(NamedTuple):
    """Prompts of a run by task, as far as they are known.

    Example: Pool(training={"gsm8k": 7273}, held_out={"gsm8k": 200})
    """

    training: Mapping[str, int]
    held_out: Mapping[str, int]


def source_line(given: RunConfig, config: RunConfig, saved: bool = False, longest_prompt: int = 0) -> str:
    """Return the sizes of a run with where they are from: measured, given, saved, chosen or assumed.

    Args:
        given: The configuration before sizes were chosen.
        config: The same with its sizes.
        saved: Whether the run has begun with these sizes.
        longest_prompt: Longest prompt, tokens; 0: not read.
    """
    chosen = "saved" if saved else "chosen"
    tokens, expected = given.learner.micro_batch_tokens, config.rollouts.expected_tokens
    longest = f"prompts of at most {longest_prompt:,} tokens" if longest_prompt else "the longest prompt"
    sources = [
        (f"{slots_of(config):,} slots", chosen if saved or given.rollouts.slots == "auto" else "given"),
        (f"micro-batches of {micro_batch_tokens(config):,} tokens", chosen if saved or tokens == "auto" else "given"),
        (f"a mean length of {expected_tokens(config):,} tokens", "assumed" if expected == "auto" else "given"),
        (longest, "measured" if longest_prompt else "assumed"),
    ]
    of = {source: [name for name, own in sources if own == source] for _, source in sources}
    return "; ".join(f"{source}: {', '.join(names)}" for source, names in of.items())


def derived_sizes(config: RunConfig, pool: Pool | None = None) -> list[str]:
    """Return the derived sizes as lines of text, for the start of a run; `pool` has its prompts, if they are known."""
    pool = pool or Pool({}, {})
    recipe, checks = config.recipe, config.evaluation
    total = recipe.completions_per_step
    longest = recipe.length.max_tokens
    most = "at most " if checks.prompts == "auto" else ""
    sets = " and ".join(
        (
            f"{pool.held_out[task.curve]} held-out prompts"
            if task.curve in pool.held_out
            else "all prompts"
            if is_suite(task)
            else f"{most}{checks.held_out_of(task)} held-out prompts"
        )
        + (f" of {task.curve}" if len(config.data) > 1 else "")
        + (f" ({task.samples} samples each)" if task.samples != "auto" else "")
        for task in config.data
    )
    g = generation_of(config)
    lag = f"{g.lag_ticks} decode steps" + (" (initially)" if g.lag_follows else "")
    used = f"; weights are used {lag} after their batch is complete" if g.lag_ticks else ""
    generators = f", on {config.placement.engines} generators" if config.placement.engines > 1 else ""
    beside = ", beside training" if checks.overlap else ""
    return [
        f"{recipe.name}: {config.steps} steps of {recipe.prompts_per_step} prompts x {recipe.generations_per_prompt} "
        f"generations = {total} completions of up to {longest} tokens (<= {total * longest:,} tokens per step)",
        f"{recipe.off_policy.kind}: tokens at most {recipe.off_policy.max_lag} updates old; {g.slots} "
        f"sequences decoded together{generators}, expected occupancy {expected_occupancy(config):.0%} at a mean "
        f"length of {g.expected_tokens} tokens{used}",
        f"evaluation every {checks.every} steps{beside}: {sets} x {checks.samples} samples",
        config.checkpoint.policy(checks.every),
        *_draws_lines(config, pool.training),
    ]


MANY_DRAWS = 20.0
"""Draws of each prompt above which a run is cautioned about them (docs/recipe.md#zero-variance-filter and below it)."""


def _draws_lines(config: RunConfig, training: Mapping[str, int]) -> list[str]:
    """Return how often each training prompt is drawn, a line for each task whose prompts are known."""
    drawn = config.steps * config.recipe.prompts_per_step
    lines = []
    for task in config.data:
        name, share = task.curve, shares(config.data)[task.curve]
        if isinstance(task, CustomTask) and name not in training:
            count = task.prompts + config.evaluation.held_out_of(task)
            lines.append(
                f"prompts: {task.function} must make {count:,} distinct ones (data.prompts and evaluation.prompts "
                "together); a dry run checks that with --trust and a model that is here"
            )
        if not share or not training.get(name):
            continue
        times = share * drawn / training[name]
        of_task = f" of {name}" if len(config.data) > 1 else ""
        caution = (
            f". Caution: more than {MANY_DRAWS:g} times, a policy learns a small set by heart, and wrong references "
            "ruin it: add prompts, lower steps, or check the references"
        )
        lines.append(
            f"prompts: each of {training[name]:,} training prompts{of_task} is drawn {times:.1f} times"
            f"{caution if times > MANY_DRAWS else ''}"
        )
    return lines
