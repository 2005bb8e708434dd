"""Plans runs: simulates a configuration, and finds the best split of GPUs into trainers and generators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any
from urllib.parse import urlsplit

from scalerl.core.errors import ConfigError
from scalerl.core.run_files import SAVED_SAMPLES
from scalerl.training.config.base import chosen
from scalerl.training.config.base import replace as replace_part
from scalerl.training.config.run import Checkpointing
from scalerl.training.machines.evaluations import count_of
from scalerl.training.machines.layout import check_layout, lay_out
from scalerl.training.machines.measured import Measured, lengths_like, lognormal
from scalerl.training.machines.memory import (
    cache_bytes_per_token,
    checkpoint_bytes,
    disk_size,
    kept_checkpoints,
    sent_bytes,
    slots_that_fit,
)
from scalerl.training.machines.simulation import QUANTA, Figures, simulate_run
from scalerl.training.machines.sizing import Machine, free_of, memory_line
from scalerl.training.machines.speed import (
    GPUS,
    Assumptions,
    Lengths,
    Speeds,
    StepSeconds,
    UpdateSeconds,
    decode_roofline,
    this_cpu,
    training_roofline,
    transfer_seconds,
    updates_from_rate,
)
from scalerl.training.placement.devices import GB, devices
from scalerl.training.placement.sizes import RunSizes, kept_busy

SIGMA = 0.8
"""Standard deviation of the logarithm of lengths that were not measured."""

UPDATES = 20
"""Default number of updates to measure after the ramp-up."""

COMPLETIONS = 1 << 18
"""Number of completions to measure, in at least LEAST_UPDATES updates; large batches vary less and need fewer."""

LEAST_UPDATES = 8

ESTIMATED = 4
"""Updates that the estimate at the start of a run measures."""

STRIDES = 12
"""Number of steps in which the search covers all possible splits."""

MOST_GPUS, MANY_GPUS = 1024, 512
"""Largest number of GPUs whose splits are searched; above MANY_GPUS, the search simulates coarsely, in seconds."""


@dataclass(frozen=True, slots=True)
class SpeedInputs:
    """Speeds that are known in addition to the sizes; the others are assumed.

    Example: SpeedInputs(assumed=Assumptions(GPUS["H100"]), generator_step_s=0.0256)
    """

    assumed: Assumptions
    measured: Measured | None = None
    """Measurements of runs (`--from`)."""
    generator_step_s: float = 0.0
    """Seconds of a decode step of one engine, full or not; 0: not given."""
    trainer_rate: float = 0.0
    """Trained tokens/s of one rank; 0: not given."""
    transfer_s: float | None = None
    """Seconds of one transfer of weights."""
    updates: int = 0
    """Updates to measure; 0: automatic."""
    sampling: Assumptions | None = None
    """Those of the generators, if they differ; None: `assumed`."""


def lengths_of(run: RunSizes, measured: Measured | None) -> Lengths:
    """Return the lengths that a simulation draws from: fitted to measured runs, or lognormal with the expected mean."""
    control = run.recipe.length
    if measured is None:
        return lognormal(run.expected_tokens, SIGMA, control)
    return lengths_like(measured.tokens_mean, measured.tokens_max, measured.batch, control)


def speeds_of(run: RunSizes, inputs: SpeedInputs) -> tuple[Speeds, list[str]]:
    """Return the speeds of a run, and lines with the source of each."""
    steps, from_generator = _generation(run, inputs)
    updates, from_trainer = _training(run, inputs)
    # vLLM pauses its sequences while it receives weights; the torch engine copies weights that have arrived
    if inputs.transfer_s is not None:
        sending, swap, source = inputs.transfer_s, inputs.transfer_s, "as given"
    elif inputs.measured is not None or run.on_cpu:
        sending, swap, source = 0.0, 0.0, "within the updates"
    else:
        nodes = nodes_with_engines(run)
        sending, swap = transfer_seconds(sent_bytes(run), inputs.assumed, run.channel, nodes)
        source = f"assumed: {run.channel} to engines on {nodes} node{'s' if nodes > 1 else ''}"
    drift: Sequence[tuple[float, float]] = ((1.0, 1.0),)
    if inputs.measured is not None:
        swap = inputs.measured.swap_s
        drift = drift if inputs.generator_step_s or inputs.trainer_rate else inputs.measured.drift
    speeds = Speeds(steps, updates, sending, swap, run.prompt_tokens, drift)
    weights = f"weights: {sending:.3g} s to send and {swap:.3g} s to receive, {source}"
    return speeds, [f"generator: {from_generator}", f"trainer: {from_trainer}", weights]


def nodes_with_engines(run: RunSizes) -> int:
    """Return the number of nodes that receive weights; servers given by address are told apart by their host."""
    hosts = [at.host for (kind, _), at in devices(run).items() if kind == "generator"]
    return len({urlsplit(host).hostname or host for host in hosts})


def _generation(run: RunSizes, inputs: SpeedInputs) -> tuple[StepSeconds, str]:
    if inputs.generator_step_s:
        return (lambda running, context: inputs.generator_step_s), "tokens/s as given"
    if inputs.measured is not None:
        line = f"{1e3 * inputs.measured.base_s:.3g} ms + {1e6 * inputs.measured.slope_s:.3g} us per running sequence"
        return inputs.measured.step_seconds, f"measured, a decode step takes {line}"
    assumed = inputs.sampling or inputs.assumed
    steps = decode_roofline(run.model.sizes, assumed, run.placement.gpus_of_a_generator)
    if run.placement.engine != "vllm":
        return steps, "a roofline (assumed)"
    rate = assumed.server
    return lambda running, context: max(steps(running, context), running / rate), "a roofline (assumed)"


def _training(run: RunSizes, inputs: SpeedInputs) -> tuple[UpdateSeconds, str]:
    ranks = run.placement.trainer_ranks
    if inputs.trainer_rate:
        rate = inputs.trainer_rate * ranks
        return updates_from_rate(rate), f"tokens/s as given, {rate:,.0f} for {ranks} rank{'s' * (ranks > 1)}"
    if inputs.measured is not None:
        rate = inputs.measured.trainer_tokens_per_s * ranks / inputs.measured.ranks
        return inputs.measured.update_seconds(ranks), f"measured, {rate:,.0f} trained tokens/s"
    work = (ranks, run.micro_batch_tokens, run.prompt_tokens, run.recomputed, run.placement.expert_ranks)
    reference = run.recipe.kl_coefficient > 0
    return training_roofline(run.model.sizes, inputs.assumed, *work, reference), "a roofline (assumed)"


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """Result of simulating one configuration.

    Example: RunEstimate(trainer_ranks=16, generators=64, slots=768, figures=Figures(...), eval_s=310.0, ...)
    """

    trainer_ranks: int
    generators: int
    gpus: int
    """Total GPUs; 0 on CPU."""
    slots: int
    """Slots of all generators."""
    figures: Figures
    micro_batch_tokens: int
    recomputed: bool
    """Whether activations are recomputed in the backward pass (`learner.gradient_checkpointing`)."""
    eval_s: float
    """Seconds of one evaluation, estimated."""
    checkpoint_s: float
    """Seconds of one checkpoint, for which training waits, estimated."""
    evaluated_updates_per_h: float
    """Updates per hour including evaluations and checkpoints."""
    hours: float
    """Hours of the whole run, with its evaluations and checkpoints."""
    device_hours: float
    """The same times the devices that it holds: GPUs, or 1 on CPU."""
    money: float | None
    """The same times `price` of the configuration; None without a price."""

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values, documented in docs/json.md."""
        values = asdict(self)
        figures: dict[str, Any] = values.pop("figures")
        return values | figures | {"useful_tokens_per_s": self.figures.useful_tokens_per_s}


def simulate(run: RunSizes, inputs: SpeedInputs, lengths: Lengths, *, coarse: bool = False) -> RunEstimate:
    """Simulate a run; `coarse`: in a sixth of the time, good enough to compare splits."""
    speeds, _ = speeds_of(run, inputs)
    automatic = max(LEAST_UPDATES, min(UPDATES, COMPLETIONS // run.recipe.completions_per_step))
    updates = inputs.updates or (LEAST_UPDATES if coarse else automatic)
    figures = simulate_run(run, speeds, lengths, updates, QUANTA // 4 if coarse else QUANTA)
    busy = 2.0 - figures.generator_idle - figures.trainer_idle
    if busy > 1.0 and lay_out(run).sharing:
        rates = ("tokens_per_s", "trained_tokens_per_s", "updates_per_h")  # the work of both takes turns on one GPU
        figures = replace(figures, **{name: getattr(figures, name) / busy for name in rates})
    return run_estimate(run, inputs, figures, evaluation_seconds(run, speeds, lengths))


def batch_seconds(run: RunSizes, speeds: Speeds, lengths: Lengths) -> tuple[float, float]:
    """Return the seconds of sampling a batch with full slots, and those of its update with sending its weights."""
    batch, engines, mean = run.recipe.completions_per_step, run.placement.engines, float(lengths.mean())
    n = run.slots / engines
    update_s = speeds.update_seconds(lengths[:batch]) + speeds.transfer_s
    return batch * mean / (engines * n / speeds.mean_step(n, mean)), update_s


def run_estimate(run: RunSizes, inputs: SpeedInputs, figures: Figures, eval_s: float) -> RunEstimate:
    """Return the outcome of a simulated run, with the time of its evaluations and checkpoints.

    Seconds of an update: 3600 / updates_per_h + checkpoint_s / updates between checkpoints + late_s / updates between
    evaluations. An evaluation stops training for late_s = eval_s seconds or, on a GPU of its own, for those by which it
    is longer than the updates until the next one. The one before training or, on its own GPU, the last one is waited
    for in full.
    """
    # one process only copies its state to the host before training goes on; ranks write it together
    rate = inputs.assumed.host if run.placement.trainer_ranks == 1 else inputs.assumed.disk
    checkpoint_s = checkpoint_bytes(run) / rate if run.hardware.device == "cuda" else 0.0
    update_s = 3600.0 / figures.updates_per_h
    update_s += checkpoint_s / updates_between_checkpoints(run.checkpoint, update_s)
    place, layout, every = run.placement, lay_out(run), run.evaluation.every
    late_s = max(0.0, eval_s - every * update_s) if layout.evaluates_apart else eval_s
    hours = (run.steps * update_s + run.steps // every * late_s + eval_s) / 3600.0
    device_hours = hours * max(1, layout.gpus)
    return RunEstimate(
        trainer_ranks=place.trainer_ranks,
        generators=place.engines,
        gpus=layout.gpus,
        slots=run.slots,
        figures=figures,
        micro_batch_tokens=run.micro_batch_tokens,
        recomputed=run.recomputed,
        eval_s=eval_s,
        checkpoint_s=checkpoint_s,
        evaluated_updates_per_h=3600.0 / (update_s + late_s / every),
        hours=hours,
        device_hours=device_hours,
        money=None if run.price is None else device_hours * run.price,
    )


def updates_between_checkpoints(policy: Checkpointing, update_s: float) -> float:
    """Return the updates between two checkpoints: `checkpoint.every`, or fewer if its minutes are over before."""
    return max(1.0, min(policy.every, 60.0 * policy.every_minutes / update_s if policy.every_minutes else math.inf))


def evaluation_seconds(run: RunSizes, speeds: Speeds, lengths: Lengths) -> float:
    """Return the seconds of one evaluation: all tokens with full slots, then the longest completion alone.

    tokens / (engines x n / step(n)) + longest x step(1), with n sequences per engine.
    """
    sequences, mean = run.evaluated, float(lengths.mean())
    engines = 1 if run.evaluation.overlap else run.placement.engines
    n = max(1, min(run.slots // run.placement.engines, math.ceil(sequences / engines)))
    alone = speeds.step_seconds(1, speeds.prompt_tokens + mean)
    return sequences * mean / (engines * n / speeds.mean_step(n, mean)) + float(lengths.max()) * alone


def run_lines(run: RunSizes, machine: Machine) -> list[str]:
    """Return lines with the memory that a run on this machine needs, what is free, and its expected duration."""
    lines, gpu = [memory_line(run, machine)], machine.gpu
    if gpu is not None and not machine.elsewhere:
        layout = lay_out(run)
        trains, samples = (memory.total / GB for memory in (layout.trainer, layout.at_limit))
        lines.append(
            f"GPU memory (estimate): trainer {trains:.1f} GB, generator {samples:.1f} GB at the length limit"
            f"{', on the same GPU' if layout.sharing else ''}; {free_of(gpu)}"
        )
    return [*lines, disk_line(run), *filter(None, [duration_line(run, machine)])]


ROW_BYTES, TEXT_BYTES, RECORD_BYTES = 2_000, 8, 8
"""Bytes of a row of metrics.jsonl, and of a token of a saved rollout as text and as a record."""


def disk_line(run: RunSizes) -> str:
    """Return the disk that a run needs for checkpoints, and how fast its rows grow."""
    tokens, in_flight = run.expected_tokens, 0.0
    if run.placement.engine == "torch":
        mean_row = run.prompt_tokens + tokens / 2
        in_flight = run.slots * mean_row * cache_bytes_per_token(run.model.sizes, width=run.width)
    whole, kept = checkpoint_bytes(run) + in_flight, kept_checkpoints(run) + 1
    evaluation = (run.evaluation.saved * run.tasks + SAVED_SAMPLES) * tokens * (TEXT_BYTES + RECORD_BYTES)
    rows = 1_000 * (ROW_BYTES + evaluation / run.evaluation.every)
    return (
        f"disk (estimate): {disk_size(whole)} a checkpoint, at most {kept} of them; "
        f"rows and saved rollouts take {disk_size(rows)} per 1,000 updates"
    )


def duration_line(run: RunSizes, machine: Machine) -> str:
    """Return the expected duration of a run in words, with the speeds that it is estimated from; empty if unknown."""
    if (found := expected_here(run, machine)) is None:
        return ""
    expected, inputs = found
    generate_s, train_s = batch_seconds(run, speeds_of(run, inputs)[0], lengths_of(run, None))
    gpu, warm = inputs.assumed.gpu, warm_start_seconds(run, inputs)
    first = f"; before them, once on a machine, a warm start of about {in_units(warm)}" if warm else ""
    evaluations = count_of(run.steps, run.evaluation.every)
    source = f"the data sheet of {gpu.name}"
    if machine.gpu is None:
        source = f"a product on this CPU at {gpu.flops / 1e9:,.0f} GFLOP/s"
    return (
        f"duration (estimate): {in_units(3600.0 / expected.figures.updates_per_h)} per update (sampling "
        f"{in_units(generate_s)}, training {in_units(train_s)}), {in_units(3600.0 * expected.hours)} for "
        f"{run.steps:,} updates and {evaluations} evaluation{'s' * (evaluations != 1)} of "
        f"{in_units(expected.eval_s)}{first}; from a simulation with FLOPs, a mean length of "
        f"{run.expected_tokens:,} tokens, and {source}"
    )


def warm_start_seconds(run: RunSizes, inputs: SpeedInputs) -> float:
    """Return the expected seconds of the lab's warm start, whose traces are about as long as rollouts; else 0."""
    _, train_s = batch_seconds(run, speeds_of(run, inputs)[0], lengths_of(run, None))
    return run.warm_rows * train_s / run.recipe.completions_per_step


def expected_here(run: RunSizes, machine: Machine) -> tuple[RunEstimate, SpeedInputs] | None:
    """Return what is expected of a run on this machine, and the speeds; None with vLLM's CPU build, whose are unknown.

    `machine` has the name of its GPUs as torch reports it.
    """
    if machine.gpu is not None:
        name = machine.gpu.limit.replace(" ", "")
        known = next((one for one in GPUS.values() if one.name in name), GPUS["H100"])
        samples = trains = Assumptions(known)
    elif run.placement.engine == "vllm":
        return None
    else:
        threads = run.hardware.generator_threads, run.hardware.trainer_threads
        samples, trains = (this_cpu(chosen(count), run.model.sizes.layers) for count in threads)
    inputs = SpeedInputs(trains, sampling=samples)
    return expected_run(run, inputs), inputs


def expected_run(run: RunSizes, inputs: SpeedInputs) -> RunEstimate:
    """Return what the simulation of a few updates expects of a run."""
    # decode steps in lockstep take long to simulate one by one, and change the duration of a run little
    eager = replace(run, schedule="eager")
    return simulate(eager, replace(inputs, updates=ESTIMATED), lengths_of(run, None), coarse=True)


def in_units(seconds: float) -> str:
    """Return a duration in seconds, minutes, hours or days.

    Example: in_units(630.0) == "10.5 minutes"
    """
    for size, unit in ((172_800, "days"), (5_400, "hours"), (90, "minutes")):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'hours': 3_600, 'minutes': 60}[unit]:.1f} {unit}"
    return f"{seconds:.2g} s"


# -------------------------------------------------------------------------------------------------------------- splits


def with_split(run: RunSizes, ranks: int, generators: int, lengths: Lengths) -> RunSizes:
    """Return a run with another split; open slots become those that fit and can be kept busy."""
    own, mean = run.placement.gpus_of_a_generator, float(lengths.mean())
    place = replace_part(
        run.placement, trainer_ranks=ranks, generators=generators, gpus_per_generator=own, servers=(), gpus=None
    )
    slots = run.slots
    if "slots" in run.open:
        fit = slots_that_fit(run.model.sizes, run.prompt_tokens + mean, place.gpu_gb * GB, place.tensor_parallel)
        busy = int(kept_busy(run.recipe, mean / float(lengths.max())))
        slots = max(generators, min(fit * generators, max(busy, run.recipe.completions_per_step)))
    return replace(run, placement=place, slots=slots)


SAME = 0.99
"""Share of the best useful tokens per second from which on fewer slots and fresher tokens count instead."""


def with_layout(run: RunSizes, inputs: SpeedInputs, lengths: Lengths, micro_batches: Sequence[int] = ()) -> RunSizes:
    """Return a run with the fastest micro-batch, recomputed or not, of those with which it fits.

    Args:
        run: The run with its split. Sizes that the user has set are kept.
        inputs: Known speeds.
        lengths: Lengths of completions.
        micro_batches: Tokens of a micro-batch to try if the user has set none; empty: the run's.

    Raises:
        ConfigError: It fits with none.
    """
    batch, problem = lengths[: run.recipe.completions_per_step], None
    sizes = micro_batches if micro_batches and "micro_batch_tokens" in run.open else [run.micro_batch_tokens]
    fitting: list[tuple[float, int, RunSizes]] = []
    for tokens, recomputed in product(sizes, [False, True] if "recomputed" in run.open else [run.recomputed]):
        candidate = replace(run, micro_batch_tokens=tokens, recomputed=recomputed)
        try:
            check_layout(lay_out(candidate))
        except ConfigError as error:
            problem = problem or error
            continue
        fitting.append((_training(candidate, inputs)[0](batch), len(fitting), candidate))
    if not fitting:
        assert problem is not None
        raise problem
    return min(fitting)[2]


def fewer_slots(run: RunSizes, inputs: SpeedInputs, lengths: Lengths, best: RunEstimate) -> RunEstimate:
    """Return the outcome with the fewest slots, in eighths of the best one's, that has SAME of its useful tokens.

    Slots that the schedule leaves empty cost memory, and generation that runs ahead of training makes tokens stale.
    """
    if "slots" not in run.open:
        return best
    result, least = best, run.placement.engines
    for eighths in range(7, 0, -1):
        slots = max(least, best.slots * eighths // 8)
        if slots >= result.slots:
            break
        fewer = simulate(replace(run, slots=slots), inputs, lengths)
        if fewer.figures.useful_tokens_per_s < SAME * best.figures.useful_tokens_per_s:
            break
        result = fewer
    return result


def splits(gpus: int, of_a_generator: int, node: int) -> list[tuple[int, int]]:
    """Return the (trainer ranks, generators) that use all GPUs; beyond two nodes, trainers fill whole nodes.

    Raises:
        ConfigError: No split is possible.
    """
    step = node if gpus > 2 * node else 1
    found = [
        (ranks, (gpus - ranks) // of_a_generator)
        for ranks in range(step, gpus, step)
        if (gpus - ranks) % of_a_generator == 0
    ]
    if not found:
        raise ConfigError(
            f"--gpus: got {gpus} with generators of {of_a_generator} GPUs; allowed: at least {of_a_generator + 1}, for "
            "one trainer rank and one generator"
        )
    return found


def check_searched(gpus: int) -> None:
    """Check that the splits of a number of GPUs can be searched; raises ConfigError."""
    if gpus > MOST_GPUS:
        raise ConfigError(
            f"--gpus: got {gpus:,}; allowed: at most {MOST_GPUS:,}, because each split takes seconds to simulate. For "
            "more, simulate one split: scalerl plan --placement.trainer_ranks N --placement.generators N"
        )


def best_split(
    run: RunSizes, inputs: SpeedInputs, lengths: Lengths, gpus: int, micro_batches: Sequence[int] = ()
) -> list[RunEstimate]:
    """Search for the best split, starting at the most balanced one, in growing and then shrinking steps.

    Args:
        run: The run; open slots, micro-batch and recomputation are chosen.
        inputs: Known speeds.
        lengths: Lengths of completions.
        gpus: GPUs of the run.
        micro_batches: Tokens of a micro-batch to try; empty: the run's.

    Returns:
        The simulated splits. The first has at least SAME of the most useful tokens per second, and of those that do the
        freshest tokens; the others follow by decreasing useful tokens.

    Raises:
        ConfigError: The model fits in no split of these GPUs; the message has the last reason. Or there are too many.
    """
    check_searched(gpus)
    fitting, reason = [], ""
    for ranks, generators in splits(gpus, run.placement.gpus_of_a_generator, inputs.assumed.node):
        if ranks % run.placement.expert_ranks:
            continue
        if "slots" not in run.open and run.slots < generators:
            reason = f"rollouts.slots: got {run.slots} for {generators} generators; allowed: at least one for each."
            continue
        try:
            candidate = with_split(run, ranks, generators, lengths)
            fitting.append(with_layout(candidate, inputs, lengths, micro_batches))
        except ConfigError as error:
            reason = str(error)
    if not fitting:
        raise ConfigError(
            f"--gpus: got {gpus}, but no split of them into trainers and generators fits the model. {reason}"
        )
    start = min(range(len(fitting)), key=lambda i: abs(math.log(balance(fitting[i], inputs, lengths))))
    outcomes: dict[int, RunEstimate] = {}

    def useful(index: int) -> float:
        if not 0 <= index < len(fitting):
            return -1.0
        if index not in outcomes:
            outcomes[index] = simulate(fitting[index], inputs, lengths, coarse=gpus > MANY_GPUS)
        return outcomes[index].figures.useful_tokens_per_s

    best, stride = start, max(1, len(fitting) // STRIDES)
    for way in (-stride, stride):
        step = way
        while useful(best + step) > useful(best):
            best, step = best + step, 2 * step if len(fitting) > STRIDES else step
        while abs(step) > stride:  # the best lies on either side of the last good one
            step //= 2
            best = max((best, best + step, best - step), key=useful)
    as_good = [index for index in outcomes if useful(index) >= SAME * useful(best)]
    best = min(as_good, key=lambda index: (outcomes[index].figures.staleness_mean, -useful(index)))
    first = outcomes.pop(best) if gpus <= MANY_GPUS else simulate(fitting[best], inputs, lengths)
    first = fewer_slots(fitting[best], inputs, lengths, first)
    others = [outcome for index, outcome in outcomes.items() if index != best]
    return [first, *sorted(others, key=lambda outcome: -outcome.figures.useful_tokens_per_s)]


def balance(run: RunSizes, inputs: SpeedInputs, lengths: Lengths) -> float:
    """Return the seconds of generating a batch with full slots, divided by the seconds of its update."""
    generate_s, train_s = batch_seconds(run, speeds_of(run, inputs)[0], lengths)
    return generate_s / train_s


def outcome_table(outcomes: Sequence[RunEstimate]) -> list[str]:
    """Return a table of the outcomes as lines."""
    head = (
        "  trainers generators   slots   updates/h   tokens/s  occupancy  idle: gen, train  staleness     stale"
        "  micro-batch  checkpoint"
    )
    rows = []
    for one in outcomes:
        f = one.figures
        size = f"{one.trainer_ranks:10d} {one.generators:10d} {one.slots:7d}"
        idle = f"{f.occupancy:10.0%} {f.generator_idle:10.0%}, {f.trainer_idle:5.0%}"
        age = f"{f.staleness_mean:9.1f} of {f.staleness_max:2d} {f.stale_share:9.1%}"
        batch = f"{one.micro_batch_tokens:,}{'*' if one.recomputed else ' '}"
        rows.append(
            f"{size} {f.updates_per_h:11.1f} {f.tokens_per_s:10,.0f} {idle} {age} {batch:>12} {one.checkpoint_s:9.0f} s"
        )
    return [head, *rows, "* activations are recomputed in the backward pass"][
        : len(rows) + 1 + any(one.recomputed for one in outcomes)
    ]
