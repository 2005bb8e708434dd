"""`scalerl plan`: simulates a run before it starts: throughput, idle shares, staleness, best split of GPUs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.cli.options import Parser, add_json, parse_with_config
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import ConfigError, nearest
from scalerl.core.machine import Memory, host_memory
from scalerl.core.packages import TRAINING_MODULES, check_installed
from scalerl.core.working import Working
from scalerl.reading.curves import CurveError, fit
from scalerl.reading.curves.estimate import as_json, percent
from scalerl.reading.curves.price import NextGain, next_gain
from scalerl.reading.curves.units import compute_text, money_text
from scalerl.reading.pages.outlook import read_sources
from scalerl.training.config import RunConfig, read_config
from scalerl.training.config.base import replace
from scalerl.training.loop.planned import pool_of
from scalerl.training.machines.evaluations import curve_line, curve_prospect
from scalerl.training.machines.layout import check_divides, check_layout, lay_out, lines, planned, size_line
from scalerl.training.machines.measured import measure
from scalerl.training.machines.plan import (
    RunEstimate,
    SpeedInputs,
    best_split,
    in_units,
    lengths_of,
    outcome_table,
    simulate,
    speeds_of,
)
from scalerl.training.machines.sizing import PLANNED, Machine, sized
from scalerl.training.machines.speed import GPUS, Assumptions
from scalerl.training.placement.devices import GB
from scalerl.training.placement.sizes import RunSizes
from scalerl.training.prompts.files import check_prompt_files

DESCRIPTION = """simulate a run before it starts, with the schedule that the run will use: throughput, slot occupancy,
idle shares, staleness, and with --gpus the best split into trainers and generators. Speeds that are neither given nor
measured are estimated from a roofline; the output lists them. Every field of the configuration is an option, as for
`scalerl train`."""


LARGEST_SPEED = 1e12
"""Largest speed, length or time that is accepted."""

NUMBER_OPTIONS: dict[str, tuple[type, str]] = {
    "gpus": (int, "find the best split of N GPUs, at most 1,024"),
    "generator_tokens_per_s": (float, "tokens/s of one engine with full slots"),
    "trainer_tokens_per_s": (float, "trained tokens/s of all placement.trainer_ranks together"),
    "transfer_s": (float, "duration of one transfer of weights, seconds"),
    "updates": (int, "number of measured updates; default 20, down to 8 for large batches"),
}
"""Options that are numbers above 0 (`transfer_s` may be 0): type and help."""


def plan_parser() -> Parser:
    """Return the parser of `scalerl plan`; unknown options are fields of the configuration."""
    usage = "scalerl plan [CONFIG.toml] [options] [--any.field VALUE ...]"
    parser = Parser(prog="scalerl plan", usage=usage, description=DESCRIPTION, allow_abbrev=False)
    words = "read speeds and lengths from run directories"
    parser.add_argument("--from", dest="runs", nargs="+", type=Path, metavar="RUN", default=[], help=words)
    parser.add_argument("--gpu", default="H100", metavar="NAME", help="GPU of the roofline; default H100")
    for name, (kind, words) in NUMBER_OPTIONS.items():
        option, letter = f"--{name.replace('_', '-')}", "N" if kind is int else "X"
        parser.add_argument(option, type=kind, metavar=letter, help=words)
    words = "measure the peak memory of a trainer rank with fake tensors instead, in minutes (docs/cluster.md)"
    parser.add_argument("--rehearse", action="store_true", help=words)
    add_json(parser)
    return parser


def run_plan(words: list[str]) -> int:
    """Run `scalerl plan`; return the exit code.

    Raises:
        ConfigError: An option or the configuration is invalid.
    """
    file, options, fields = parse_with_config(plan_parser(), words)
    if file is None and options.runs:
        file = options.runs[0] / "config.toml"
    config = planned(read_config(file, fields))
    check_prompt_files(config.data)
    if options.rehearse:
        with Working("rehearsing"):
            return _rehearse(config, options.json)
    pool = pool_of(config)
    if options.gpus:
        config = replace(config, placement=replace(config.placement, servers=(), gpus=None))
    run = RunSizes.of(config, prompts=pool)
    speeds = _speeds(run, options)
    lengths = lengths_of(run, speeds.measured)
    with Working("simulating"):
        if options.gpus:
            outcomes = best_split(run, speeds, lengths, options.gpus)
            about = [size_line(run.model)]
        else:
            gpu = config.placement.gpu_gb * GB
            run = sized(run, Machine(host_memory(), Memory(gpu, gpu, PLANNED)))
            layout = lay_out(run)
            check_layout(layout)
            about = [*lines(layout), run.sources()]
            outcomes = [simulate(run, speeds, lengths)]
    _, notes = speeds_of(run, speeds)
    assumed = any("roofline" in note or "assumed" in note for note in notes)
    notes += [f"assumed: {speeds.assumed.line}"] if assumed else []
    gains = next_gains(options.runs, config.price)
    if options.json:
        values = {**_as_json(run, lengths, outcomes, notes), "next_gains": gains}
        curve = curve_prospect(config, pool.held_out)
        values["curve"] = None if curve is None else curve.to_dict()
        print(json.dumps(as_json(values), indent=1, allow_nan=False))
        return 0
    print_lines(
        *about,
        *plan_lines(lengths, outcomes, notes, run, options.gpus),
        cost_line(outcomes[0], config.steps),
        curve_line(config, pool.held_out),
        *(f"next gain of {name}: {gain}" for name, gain in gains.items()),
    )
    return 0


def next_gains(runs: list[Path], price: float | None) -> dict[str, NextGain | str]:
    """Return what twice the compute should gain for each measured run by its path, or why that is not known yet."""
    gains: dict[str, NextGain | str] = {}
    for path in runs:
        try:
            source = read_sources([path])[0]
            gains[str(path)] = next_gain(fit(source.curve), source.terms({"price": price}).get("price"))
        except CurveError as error:  # too young, or with several tasks; its speeds are still used
            gains[str(path)] = f"not known ({error})"
    return gains


def cost_line(outcome: RunEstimate, steps: int) -> str:
    """Return the cost of the whole run, with its evaluations."""
    money = "" if outcome.money is None else f" ({money_text(outcome.money)})"
    return (
        f"cost: {steps:,} updates and their evaluations take {in_units(3600.0 * outcome.hours)} and "
        f"{compute_text(outcome.device_hours, 'device_hours')}{money}"
    )


def _rehearse(config: RunConfig, as_json: bool) -> int:
    """Print the peak memory of a trainer rank, and the bytes that its collectives move."""
    check_installed(TRAINING_MODULES)
    try:
        from scalerl.training.machines.rehearsal import rehearse
    except ImportError as error:  # private modules of torch
        raise ConfigError(f"--rehearse: this torch lacks a part ({error}); allowed: torch 2.11 to 2.13") from None
    run = RunSizes.of(config)
    layout = lay_out(run)
    check_divides(run)
    if not as_json:
        print_lines(
            size_line(run.model),
            "rehearsing two updates with fake tensors; an 8B model takes one to four minutes ...",
        )
    result = rehearse(config, run)
    if as_json:
        print(json.dumps({**result._asdict(), "total": result.total, "estimate": layout.trainer.total}, indent=1))
        return 0
    parts, sent = (", ".join(f"{k} {v / 1e9:.1f}" for k, v in of.items()) for of in (result.parts, result.sent))
    print_lines(
        f"trainer {result.total / 1e9:.1f} GB per rank at the peak: {parts}; the estimate is "
        f"{layout.trainer.total / 1e9:.1f} GB",
        f"collectives of an update of two micro-batches, GB: {sent or 'none'}",
        f"took {result.seconds:.0f} s",
    )
    return 0


def _speeds(run: RunSizes, options: argparse.Namespace) -> SpeedInputs:
    """Check the options; return the speeds and times that they set."""
    if options.gpu not in GPUS:
        raise ConfigError(f"--gpu: got {options.gpu!r}{nearest(options.gpu, GPUS)}; allowed: {', '.join(GPUS)}")
    for name in NUMBER_OPTIONS:
        value = getattr(options, name)
        if value is not None and not (0 < value <= LARGEST_SPEED or (value == 0 and name == "transfer_s")):
            least = "of seconds from 0" if name == "transfer_s" else "above 0"
            raise ConfigError(
                f"--{name.replace('_', '-')}: got {value:g}; allowed: a number {least}, at most {LARGEST_SPEED:g}"
            )
    rate = options.generator_tokens_per_s
    speeds = SpeedInputs(
        assumed=Assumptions(GPUS[options.gpu]),
        measured=measure(options.runs) if options.runs else None,
        generator_step_s=run.slots / run.placement.engines / rate if rate else 0.0,
        trainer_rate=(options.trainer_tokens_per_s or 0.0) / run.placement.trainer_ranks,
        transfer_s=options.transfer_s,
        updates=options.updates or 0,
    )
    is_known = speeds.measured is not None or (speeds.generator_step_s and speeds.trainer_rate)
    if not is_known and run.on_cpu:
        raise ConfigError(
            "plan: speeds of the lab and of CPUs cannot be estimated; give --from RUN (a run directory), or both "
            "--generator-tokens-per-s and --trainer-tokens-per-s"
        )
    return speeds


def _as_json(run: RunSizes, lengths: Any, outcomes: list[Any], notes: list[str]) -> dict[str, Any]:
    longest = {"mean": float(lengths.mean()), "p90": float(np.quantile(lengths, 0.9)), "max": int(lengths.max())}
    sizes, source = run.model
    return {
        "model": {"params": sizes.params, "active_params": sizes.matmul_params, "source": source},
        "batch": run.recipe.completions_per_step,
        "lengths": longest,
        "speeds": notes,
        "best": outcomes[0].to_dict(),
        "outcomes": [outcome.to_dict() for outcome in outcomes],
    }


def plan_lines(lengths: Any, outcomes: list[Any], notes: list[str], run: RunSizes, gpus: int | None) -> list[str]:
    """Return simulated outcomes as lines: lengths, notes, with `gpus` a table of splits, and the best one's figures."""
    best = outcomes[0]
    f = best.figures
    out = [f"lengths: mean {lengths.mean():,.0f} tokens, longest {lengths.max():,}", *notes]
    if gpus:
        out += [f"splits of {gpus} GPUs, the best first:", *outcome_table(outcomes)]
    split = f"best: {best.trainer_ranks} trainer ranks, {best.generators} generators, rollouts.slots = {best.slots}"
    out += [split] if gpus else []
    waits = "generators" if f.generator_idle > f.trainer_idle else "the trainer"
    return [
        *out,
        f"throughput: {f.tokens_per_s:,.0f} tokens/s, {f.updates_per_h:,.1f} updates/h; with an evaluation every "
        f"{run.evaluation.every} updates ({best.eval_s:,.0f} s each) and a checkpoint every "
        f"{run.checkpoint.interval} ({best.checkpoint_s:,.0f} s each) {best.evaluated_updates_per_h:,.1f}",
        f"occupancy: {f.occupancy:.0%} of {best.slots} slots; idle: generators {f.generator_idle:.0%}, trainer "
        f"{f.trainer_idle:.0%} ({waits} wait{'' if waits == 'generators' else 's'} more)",
        f"staleness: mean {f.staleness_mean:.1f} updates, at most {f.staleness_max}; tokens too old for the "
        f"loss {percent(f.stale_share)}, groups dropped {percent(f.dropped_share)}",
    ]
