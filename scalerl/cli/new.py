"""`scalerl new`: prints a configuration for a model, prompts and a number of GPUs, with the planner's split."""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import product

import tomli_w

from scalerl.cli.options import Parser, count, parse_with_config
from scalerl.cli.plan import plan_lines
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import ConfigError
from scalerl.core.working import Working
from scalerl.training.config import RunConfig, TinyModel, read_config
from scalerl.training.config.base import replace
from scalerl.training.config.overrides import changed_values
from scalerl.training.loop.planned import pool_of
from scalerl.training.machines.evaluations import chosen_interval, curve_line
from scalerl.training.machines.layout import lay_out, lines
from scalerl.training.machines.plan import (
    SpeedInputs,
    best_split,
    check_searched,
    lengths_of,
    run_estimate,
    with_layout,
)
from scalerl.training.machines.speed import GPUS, Assumptions
from scalerl.training.models.sizes import sizes_of
from scalerl.training.placement.sizes import UNREAD, PromptCounts, RunSizes, derived_sizes

DESCRIPTION = """print a configuration for your model and prompts, with the split of GPUs, the slots and the micro-batch
that `scalerl plan` finds: scalerl new --model PATH --data FILE --gpus 8 > run.toml. From 8 GPUs on, the sizes are
the paper's, else those of the preset `small`. Every field of the configuration is an option, as for `scalerl train`."""

PARTS, MICRO_BATCHES = (1, 2, 4, 8), (16_384, 8_192, 4_096)
"""GPUs of an engine that are tried, in this order, and tokens of a micro-batch, of which the fastest is taken."""
NODE = 8
"""GPUs of one machine; more need a Ray cluster that is running."""


def run_new(words: list[str]) -> int:
    """Run `scalerl new`; return the exit code.

    Raises:
        ConfigError: An option is invalid, or the model does not fit on the GPUs.
    """
    usage = "scalerl new --model PATH --data FILE --gpus N [--any.field VALUE ...]"
    parser = Parser(prog="scalerl new", usage=usage, description=DESCRIPTION, allow_abbrev=False)
    words_of_gpus = "GPUs of the run; 0: train on the CPU. placement.gpu_gb is the memory of each, 80 GB by default"
    parser.add_argument("--gpus", type=partial(count, least=0), required=True, metavar="N", help=words_of_gpus)
    file, options, fields = parse_with_config(parser, words)
    if file is not None:
        raise ConfigError(f"new: got {str(file)!r}; allowed: options only, such as --model PATH and --data FILE")

    preset, gpus = "scalerl" if options.gpus >= NODE else "small", options.gpus
    device = "cuda" if gpus else "cpu"
    defaults = ["--evaluation.prompts", "auto", "--evaluation.samples", "4", "--hardware.device", device]
    config = read_config(None, ["--preset", preset, *defaults, *fields])
    if isinstance(config.model, TinyModel):
        raise ConfigError("new: got no model; allowed: --model PATH, with --data FILE")
    pool = pool_of(config)
    with Working("simulating"):
        if "--evaluation.every" not in " ".join(fields):
            interval = chosen_interval(config, pool.held_out)
            config = replace(config, evaluation=replace(config.evaluation, every=interval))
        run, about = RunSizes.of(config, UNREAD), list[str]()
        if gpus:
            run, about = _on_gpus(config, gpus, pool, "--checkpoint.every" in " ".join(fields))
            config = run.written_to(config)
    table = {"preset": "scalerl", **changed_values(config)}
    notes = [*derived_sizes(config, pool), run.sources(), *about, curve_line(config, pool.held_out)]
    notes += _packages(config)
    print_lines(*tomli_w.dumps(table).split("\n"), *(f"# {line}" for line in notes))
    return 0


CHECKPOINT_MINUTES = 30.0
"""Minutes of work that a crash may cost: the interval of checkpoints in a planned configuration."""


def checkpoint_interval(updates_per_h: float, evaluated: int) -> tuple[int, float | None]:
    """Return `checkpoint.every` and `checkpoint.every_minutes` at which a crash costs about `CHECKPOINT_MINUTES`.

    Every evaluation falls on a checkpoint, or every checkpoint on an evaluation: the best one is kept. No minutes if
    updates are so fast that they are not needed.

    Args:
        updates_per_h: Planned updates per hour, evaluations included.
        evaluated: Updates between two evaluations.
    """
    most = round(CHECKPOINT_MINUTES / 60.0 * updates_per_h)
    return max(1, most // evaluated) * evaluated, None if most >= evaluated else CHECKPOINT_MINUTES


def _on_gpus(
    config: RunConfig, gpus: int, pool: PromptCounts, fixed_interval: bool = False
) -> tuple[RunSizes, list[str]]:
    """Return the run with vLLM on these GPUs, and lines on memory and speed.

    Args:
        config: Configuration without a placement.
        gpus: Number of GPUs.
        pool: Prompts of the tasks that are known.
        fixed_interval: Whether the interval of checkpoints is kept; otherwise the planned speed gives it.
    """
    check_searched(gpus)
    model, speeds, many = sizes_of(config.model), SpeedInputs(Assumptions(GPUS["H100"])), gpus > 2
    on_ray = {"backend": "ray", "ray_address": "local" if gpus <= NODE else "auto"} if many else {}
    problem: ConfigError | None = None
    parts_of = [parts for parts in PARTS if parts < max(2, gpus)]
    for parts, share in product(parts_of, (1, 2, 4, 8, 16) if gpus == 1 else (1,)):
        place = replace(config.placement, engine="vllm", tensor_parallel=parts, gpus=gpus, **on_ray)
        run = RunSizes.of(replace(config, placement=place), model, prompts=pool)
        slots, lengths, words = run.slots // share, lengths_of(run, None), list[str]()
        try:
            if gpus > 1:
                best = best_split(run, speeds, lengths, gpus, MICRO_BATCHES)[0]
                place = replace(place, trainer_ranks=best.trainer_ranks, generators=best.generators)
                slots = best.slots
            run = dataclasses.replace(run, placement=place, slots=max(1, slots))
            run = with_layout(run, speeds, lengths, MICRO_BATCHES)
            layout = lay_out(run)
            if gpus > 1:
                if not fixed_interval:
                    updates_apart, minutes = checkpoint_interval(best.evaluated_updates_per_h, run.evaluation.every)
                    saved = replace(run.checkpoint, every=updates_apart, every_minutes=minutes)
                    run = dataclasses.replace(run, checkpoint=saved)
                best = run_estimate(run, speeds, best.figures, best.eval_s)
                words = plan_lines(lengths, [best], [f"assumed: {speeds.assumed.line}"], run, None)
            return run, [*lines(layout), *words]
        except ConfigError as error:
            problem = problem or error
    raise ConfigError(f"{problem}; or train adapters with --model.lora.rank 32, which one trainer GPU can hold")


def _packages(config: RunConfig) -> list[str]:
    """Return a line for a package that the configuration needs and that no extra of its installation has."""
    if getattr(config.model, "lora", None) is None:
        return []
    return ["adapters need the package peft: pip install 'scalerl[lora]'"]
