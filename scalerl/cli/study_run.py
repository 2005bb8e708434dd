"""Plans and executes a study, for `scalerl study`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from scalerl.cli.options import Parser, add_trust, bare_first, count, number
from scalerl.cli.study_show import write_and_print
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import ConfigError, nearest, short
from scalerl.core.files import output_directory
from scalerl.core.outputs import write_or_explain
from scalerl.core.packages import TRAINING_MODULES, check_installed
from scalerl.core.run_files import CONFIG, REPORT, RESULTS
from scalerl.core.stop_signals import StopFlag
from scalerl.core.working import Working
from scalerl.reading.pages.study import best_rates, study_results
from scalerl.training.config import RunConfig, TinyModel, read_config
from scalerl.training.config.base import read_option, replace
from scalerl.training.config.trust import check_trust
from scalerl.training.loop.planned import pool_of
from scalerl.training.machines.plan import expected_here, in_units, warm_start_seconds
from scalerl.training.machines.sizing import memory_here, sized
from scalerl.training.placement.devices import devices, needs
from scalerl.training.placement.sizes import UNREAD, RunSizes
from scalerl.training.prompts.files import check_prompt_files
from scalerl.training.study.directory import StudyDirectory, equal_runs, take_over
from scalerl.training.study.display import StudyDisplay, describe_plan
from scalerl.training.study.execute import ALLOCATIONS, Execution, LocalWorkers, Workers, execute
from scalerl.training.study.plan import MOST_SEEDS, Plan, checked_plan, read_plan, select, with_rates
from scalerl.training.study.plans import PLANS

USAGE = """scalerl study PLAN [BASE.toml] [options] [--any.field VALUE ...]
       scalerl study resume DIR [--jobs N]
       scalerl study show DIR [-o PAGE.html] [--json]"""

DESCRIPTION = """PLAN is loo, recipes, forward, axes, rates, frontier, or the path of a TOML file. BASE.toml
and the dotted fields are as in `scalerl train`; without them the base is the embedded lab."""


def plan_or_resume(words: Sequence[str]) -> int:
    """Run `scalerl study PLAN` or `scalerl study resume`; return the exit code.

    `words` are the arguments after `study`.

    Raises:
        UserError: There is an error that the user can correct.
    """
    if words[:1] == ["resume"]:
        options = _resume_parser().parse_args(words[1:])
        study = StudyDirectory.open(options.directory)
        _check_trust(study.plan, str(options.directory), options.trust, [])
        return _execute(study, _workers(options, study.plan), options)
    parser = _plan_parser()
    options, fields = parser.parse_known_args(bare_first(parser, words))
    plan = _plan(options, fields)
    for arm in plan.arms:
        check_prompt_files(plan.config(arm, plan.seeds[0]).data)

    others = [StudyDirectory.open(path) for path in options.reuse]
    if options.dry_run:
        _describe(plan, others, options.jobs or room_here())
        return 0
    _check_trust(plan, options.plan, options.trust, words)
    workers = _workers(options, plan)
    with output_directory(options.output, Path("studies"), plan.name) as path:
        return _execute(StudyDirectory.create(path, plan), workers, options, others)


def _check_trust(plan: Plan, source: str, trusted: bool, typed: Sequence[str]) -> None:
    """Confirm the code that the arms name, once for all runs; the runs are then started with --trust."""
    configs = [plan.config(arm, plan.seeds[0]) for arm in plan.arms]
    check_trust(configs, source, trusted=trusted, typed=typed)


def _check_saved(study: StudyDirectory, trusted: bool) -> None:
    """Confirm the code that existing runs of a study name: a resume uses their configurations, not the plan's."""
    configs = []
    for key in study.plan.runs():
        file = study.run(key) / CONFIG
        with suppress(ConfigError):  # its run cannot start, and says why
            configs += [read_config(file, [])] if file.exists() else []
    check_trust(configs, f"a run in {study.path}", trusted=trusted)


def _describe(plan: Plan, others: Sequence[StudyDirectory], jobs: int) -> None:
    """Print the arms, sizes, hours and reused runs of a plan."""
    pool = pool_of(plan.config(plan.arm(plan.reference), plan.seeds[0]))
    print_lines(*describe_plan(plan, pool), f"  {_hours_line(plan, jobs)}")
    for key, run in equal_runs(plan, others).items():
        part = "" if run.steps == plan.run_config(key).steps else f"its first {run.steps} steps are "
        print_lines(f"  {key}: {part}reused from {run.path}")


def _hours_line(plan: Plan, jobs: int) -> str:
    """Return how long the runs of a plan take together, as a run with this configuration would on this machine."""
    if find_spec("torch") is None:
        return "duration: not known without torch, which says whether there is a GPU"
    seconds, warm = list[float](), dict[Path, float]()
    with Working("estimating"):
        for arm in plan.arms:
            try:
                taken = _expected_seconds(plan.config(arm, plan.seeds[0]), warm)
            except ConfigError as error:
                return f"duration: not known, because {arm.name} would not start here: {error}"
            if taken is None:
                return f"duration: not known for the engines of {arm.name}; `scalerl plan` takes their speeds"
            seconds += [taken] * len(plan.seeds)
    at_once = f", {in_units(sum(seconds) / jobs)} with {jobs} at a time" if jobs > 1 else ""
    each = in_units(max(seconds)) if max(seconds) < 1.2 * min(seconds) else (
        f"{in_units(min(seconds))} to {in_units(max(seconds))}"
    )  # fmt: skip
    first = f", after warm starts of about {in_units(sum(warm.values()))}" if warm else ""
    return (
        f"duration (estimate): {each} a run, {in_units(sum(seconds))} for {len(seconds)} runs{at_once}{first}; "
        "`scalerl train --dry-run` of one says from what"
    )


def _expected_seconds(config: RunConfig, warm: dict[Path, float]) -> float | None:
    """Return the expected duration of a run here; None with engines whose speed is not known.

    `warm` gets the directory and the seconds of a warm start that this machine lacks.
    """
    if config.placement.backend != "local":
        return None
    from scalerl.training.loop.resolve import resolved_here  # loads torch

    resolved = resolved_here(config)
    machine = memory_here(resolved.hardware, resolved.placement)
    run = RunSizes.of(resolved, prompts=pool_of(config))
    run = sized(run, machine)
    if (found := expected_here(run, machine)) is None:
        return None
    if isinstance(config.model, TinyModel):
        from scalerl.training.loop.warm_start import warm_start_directory

        directory = warm_start_directory(config.model, config.data)
        if not directory.exists():
            warm[directory] = warm_start_seconds(run, found[1])
    return 3600.0 * found[0].hours


def _plan_parser() -> Parser:
    parser = Parser(prog="scalerl study", usage=USAGE, description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("plan", metavar="PLAN", help="name of a plan, or a TOML file")
    parser.add_argument("base", nargs="?", type=Path, metavar="BASE.toml", help="configuration that the arms share")
    parser.add_argument("--seeds", help="number of seeds, or a list: 3, or 0,1,2, or 4, for one; default 3 (rates: 1)")
    words = "steps of the base; an arm with larger batches takes fewer"
    parser.add_argument("--budget", type=int, metavar="STEPS", help=words)
    words = "these arms and the reference; patterns such as loss-*"
    parser.add_argument("--only", nargs="+", default=[], metavar="ARM", help=words)
    words = "finished `rates` study: train each loss at its best learning rate"
    parser.add_argument("--rates", type=Path, metavar="DIR", help=words)
    words = "other studies: finished runs with the same configuration are reused, and resumed if they are shorter"
    parser.add_argument("--reuse", type=Path, nargs="+", default=[], metavar="DIR", help=words)
    words = "directory; default studies/PLAN-NNN. An unfinished study there is resumed"
    parser.add_argument("-o", "--output", type=Path, help=words)
    words = "print the arms and their sizes, and stop"
    parser.add_argument("--dry-run", action="store_true", help=words)
    _add_execution(parser)
    return parser


def _resume_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="scalerl study resume", description="Resume a study.")
    parser.add_argument("directory", type=Path)
    _add_execution(parser)
    return parser


def _add_execution(parser: argparse.ArgumentParser) -> None:
    words = f"runs in parallel; default {room_here()} here, or all that fit on Ray"
    parser.add_argument("--jobs", type=partial(count, least=0), default=0, help=words)
    words = "equal: every arm to its end; forecast: only arms that may be the best; default forecast if a plan has vary"
    parser.add_argument("--allocate", choices=list(ALLOCATIONS), help=words)
    add_trust(parser, "the code that the plan names")
    parser.add_argument("--ray", metavar="ADDRESS", help="run on a Ray cluster: auto, local or HOST:PORT")
    parser.add_argument("--ray-cpus", type=number, default=2.0, help="cores per run on Ray; default 2")
    parser.add_argument("--ray-gpus", type=number, default=0.0, help="GPUs per run on Ray; default 0")


def _plan(options: argparse.Namespace, fields: Sequence[str]) -> Plan:
    name = options.plan
    if name in PLANS:
        plan = PLANS[name](_base(options, fields))
    elif name.endswith(".toml"):
        if options.base or fields:
            raise ConfigError(
                f"{name}: got {options.base or fields[0]}, but a plan in a TOML file sets its base and fields; write "
                "them into the file"
            )
        plan = read_plan(Path(name))
    else:
        raise ConfigError(
            f"plan: got {name!r}{nearest(name, PLANS)}; allowed: {', '.join(PLANS)}, or the path of a TOML file"
        )
    if options.seeds is not None:
        plan = read_option("--seeds", lambda: replace(plan, seeds=_seeds(options.seeds)))
    if options.budget is not None:
        plan = read_option("--budget", lambda: replace(plan, base=replace(plan.base, steps=options.budget)))
    if options.rates is not None:
        plan = with_rates(plan, best_rates(options.rates))
    return checked_plan(select(plan, options.only) if options.only else plan)


def _base(options: argparse.Namespace, fields: Sequence[str]) -> RunConfig:
    has_base = options.base is not None or any(word.partition("=")[0] in ("--preset", "--data") for word in fields)
    return read_config(options.base, fields if has_base else ["--preset", "quick", *fields])


def _seeds(text: str) -> tuple[int, ...]:
    """Parse seeds: `3` means 0, 1, 2; `4,7` means these two, and `4,` only seed 4."""
    try:
        numbers = tuple(int(word) for word in text.removesuffix(",").split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 0 or ("," not in text and not 1 <= numbers[0] <= MOST_SEEDS):
        raise ConfigError(
            f"--seeds: got {short(text)}; allowed: a number from 1 to {MOST_SEEDS}, or seeds "
            "from 0 on separated by commas, such as 0,1,2"
        )
    return tuple(range(numbers[0])) if "," not in text else numbers


def _execute(
    study: StudyDirectory, workers: Workers, options: argparse.Namespace, others: Sequence[StudyDirectory] = ()
) -> int:
    """Execute the unfinished runs of a study, then write and print its results."""
    study.hold()
    for line in take_over(study, others):
        print_lines(line)
    _check_saved(study, options.trust)
    display = StudyDisplay(study)
    stop_flag = StopFlag()
    execution = Execution(study, workers, display, stop_flag)
    display.start(workers.count)
    execute(execution, ALLOCATIONS[options.allocate or ("forecast" if study.plan.vary else "equal")])
    for key, message in execution.failures.items():
        print_lines(f"failed: {key}: {message}; see {study.file(key, 'log')}")
    if stop_flag():
        print_lines(f"stopped; resume with: scalerl study resume {study.path}")
        return 128 + stop_flag.signal
    _report(study)
    return 1 if execution.failures else 0


def _workers(options: argparse.Namespace, plan: Plan) -> Workers:
    if options.ray:
        from scalerl.training.machines.jobs import RayWorkers

        return RayWorkers(options.ray, options.jobs, options.ray_cpus, options.ray_gpus, _own_actors(plan))
    check_installed(TRAINING_MODULES)
    return LocalWorkers(options.jobs or room_here())


def _own_actors(plan: Plan) -> dict[str, float]:
    """Return the cores and GPUs of a run's actors, without the task that starts them: the maximum over the arms."""
    configs = [plan.config(arm, seed=0) for arm in plan.arms]
    demands = [needs(devices(RunSizes.of(config, UNREAD))) for config in configs if config.placement.backend == "ray"]
    return {name: max((demand[name] for demand in demands), default=0.0) for name in ("CPU", "GPU")}


def room_here() -> int:
    """Return how many runs fit on this machine; each uses two cores."""
    return max(1, (os.cpu_count() or 2) // 2)


def _report(study: StudyDirectory) -> None:
    """Write results.json and the page; print the verdicts and the table."""
    results = study_results(study)
    values = json.dumps(results.to_dict(), indent=1, allow_nan=False) + "\n"
    problem = write_or_explain(study.path / RESULTS, values)
    write_and_print(results, study.path / REPORT)
    if problem:
        print_lines(f"results   none: {problem}")
