"""`scalerl eval`: evaluates a model, or the model of a run, on evaluation suites or files."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalerl.cli.options import Parser, add_json, add_trust, count, number
from scalerl.cli.terminal import print_lines
from scalerl.cli.train import check_inputs
from scalerl.core.errors import ConfigError, nearest
from scalerl.core.files import output_directory, safe_name, write_whole
from scalerl.core.outputs import check_new_directory
from scalerl.core.packages import TRAINING_MODULES, prepare_environment
from scalerl.core.stop_signals import set_saved_note
from scalerl.core.working import Working
from scalerl.training.config import Hardware, HuggingFaceModel, Rollouts, RunConfig, Scoring
from scalerl.training.config.base import build, replace
from scalerl.training.config.data import PromptFile, TextTask
from scalerl.training.config.length import NoLengthControl
from scalerl.training.config.named import NAMED_SETS
from scalerl.training.config.placement import Placement
from scalerl.training.config.recipe import SCALERL, Recipe
from scalerl.training.config.trust import check_trust
from scalerl.training.loop.run_dir import saved_config

if TYPE_CHECKING:  # they import torch
    from scalerl.training.loop.suites import SuiteResult

DESCRIPTION = """Evaluate a model directory, a model on the hub, or the exported model of a run directory (with the
sampling and length limits of its recipe). A suite is a name (aime-24, math-500, gsm8k-test, ...),
a copy of one (aime-24=FILE), or a file of prompts with answers (--data FILE). Without one, a run directory
is evaluated on its held-out prompts."""

MAX_TOKENS = 4096
"""Default length limit of a completion, tokens; a run's limit and the option take precedence."""


TEXT_FIELDS = ("system_prompt", "template_date", "template_arguments")
"""Fields of a run's tasks that its suites use too."""


def eval_parser() -> Parser:
    """Return the parser of `scalerl eval`."""
    parser = Parser(prog="scalerl eval", description=DESCRIPTION)
    parser.add_argument("model", help="model directory, hub name or run directory")
    words = "suites or files to evaluate on; --data FILE, as for `scalerl train`, is the same"
    parser.add_argument("--suite", "--data", nargs="+", action="extend", default=[], metavar="NAME_OR_FILE", help=words)
    parser.add_argument("--samples", type=count, help="k, samples per prompt; default: the run's k, else 1")
    parser.add_argument("--prompts", type=count, help="number of prompts per suite, chosen by a hash of their content")
    parser.add_argument("--task", help="verifier of a file: math (default), arithmetic or code")
    parser.add_argument("--reward", help="reward function package.module:function, instead of a verifier")
    parser.add_argument("--system-prompt", help="text before every prompt; default: the run's, else none")
    parser.add_argument("--template-arguments", type=_table, metavar="JSON", help="arguments of the chat template, "
                        'such as {"enable_thinking": false}; default: the run\'s, else none')  # fmt: skip
    parser.add_argument("--max-tokens", type=count, help=f"longest completion, tokens; default: the run's, else "
                        f"{MAX_TOKENS}")  # fmt: skip
    parser.add_argument("--temperature", type=number, help="sampling temperature; default: the run's, else 1")
    parser.add_argument("--top-p", type=number, help="nucleus sampling; default: the run's, else 1")
    parser.add_argument("--seed", type=int, help="seed of the sampling; default: the run's, else 0")
    parser.add_argument("--slots", type=count, help="sequences decoded together; default: as many as fit in the cache")
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch", help="vllm: a server on every "
                        "GPU, for the time of the evaluation; default: torch, in this process")  # fmt: skip
    parser.add_argument("--vllm-python", help="Python with vLLM; default: the run's, else the one that runs scalerl")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="default: a GPU if there is one")
    parser.add_argument("--revision", help="branch, tag or commit of a model on the hub; default main")
    parser.add_argument("-o", "--output", type=Path, help="directory for the texts; default evaluations/NAME-NNN")
    add_trust(parser, "a run directory's code")
    add_json(parser, "print one JSON object instead of text")
    return parser


def _table(text: str) -> dict[str, Any]:
    """Return an object of JSON; argparse reports the error."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'got {text!r}; allowed: a JSON object such as {{"enable_thinking": false}}')
    return value


def run_eval(words: list[str]) -> int:
    """Evaluate, print the results and return the exit code.

    Raises:
        ConfigError: The model or a suite does not exist, or an option is not allowed.
    """
    arguments = eval_parser().parse_args(words)
    prepare_environment(TRAINING_MODULES)
    if arguments.output is not None:
        check_new_directory(arguments.output, "-o")
    config, tasks = eval_config(arguments)
    check_inputs(config)
    check_trust(
        [config], arguments.model, trusted=arguments.trust, typed=[arguments.reward or "", arguments.vllm_python or ""]
    )
    model = arguments.model
    name = Path(os.path.realpath(model) if os.path.exists(model) else model).name
    with output_directory(arguments.output, Path("evaluations"), name) as directory:
        return _evaluate(arguments, config, tasks, directory)


def _evaluate(arguments: argparse.Namespace, config: RunConfig, tasks: list[PromptFile], directory: Path) -> int:
    """Evaluate suite by suite, and print each result."""
    show = (lambda *lines: None) if arguments.json else print_lines
    results: list[SuiteResult] = []
    with Working("loading torch") as working:
        from scalerl.training.loop.resolve import resolve_hardware
        from scalerl.training.loop.suites import SuiteEvaluator

        config = replace(config, hardware=resolve_hardware(config.hardware))
        working.on(f"loading {arguments.model}")
        evaluator = SuiteEvaluator(config, directory, show, working.on)
        working.on("reading prompts")
        most = arguments.prompts
        prompts = [evaluator.prompts_of(task, most) for task in tasks] or evaluator.held_out_of_run(most)
        for task, rows in zip(tasks or config.data, prompts, strict=True):
            samples = arguments.samples or (1 if tasks else config.evaluation.samples_of(task))
            if isinstance(task, PromptFile):
                judge = f"the reward {task.reward.function}" if task.reward else f"the task {task.task}"
                show(f"{task.curve}: judged with {judge}")
            results.append(evaluator.evaluate(task, rows, samples, directory / f"{safe_name(task.curve)}.jsonl"))
            set_saved_note(f"finished suites are in {directory}: {', '.join(result.suite for result in results)}")
            show(*results[-1].lines())
    summary = {"model": arguments.model, "suites": [result.to_dict() for result in results]}
    write_whole(directory / "summary.json", json.dumps(summary, indent=1) + "\n")
    if arguments.json:
        print(json.dumps(summary, indent=1, allow_nan=False))
    return 0


def eval_config(arguments: argparse.Namespace) -> tuple[RunConfig, list[PromptFile]]:
    """Return the configuration of an evaluation and its suites; the list is empty for the run's held-out prompts.

    Raises:
        ConfigError: The suite is unknown, the run has no exported model, or there is nothing to evaluate on.
    """
    path, run = Path(arguments.model), (Path(arguments.model) / "config.toml").exists()
    if run and not (path / "model").is_dir():
        raise ConfigError(f"{path}: this run has no exported model yet; finish it with: scalerl resume {path}")
    if not run and not arguments.suite:
        raise ConfigError(
            "--suite or --data: a value is needed, because this is not a run directory; give a suite or a file"
        )
    base = saved_config(path) if run else None
    place = str(path / "model") if run else arguments.model
    model = build(HuggingFaceModel, {"path": place, "revision": arguments.revision or "main"}, "options")
    recipe = base.recipe if base else replace(SCALERL, length=NoLengthControl(max_tokens=MAX_TOKENS))
    changes = {name: value for name in ("temperature", "top_p") if (value := getattr(arguments, name)) is not None}
    changes["routing_replay"] = "off"  # it trains on nothing, and servers on CPU do not report experts
    if arguments.max_tokens:
        changes["length"] = build(NoLengthControl, {"max_tokens": arguments.max_tokens}, "--max-tokens")
    shared: dict[str, Any] = {
        "model": model,
        "recipe": build(Recipe, {**dict(recipe), **changes}, "options"),
        "rollouts": build(Rollouts, {"slots": arguments.slots or "auto"}, "options"),
        "hardware": Hardware(device=arguments.device or "auto"),
        "placement": _placement(arguments, base),
        "loggers": (),  # an evaluation sends nothing
        "seed": arguments.seed if arguments.seed is not None else base.seed if base else 0,
    }
    if base is not None and not arguments.suite:
        return replace(base, **shared), []
    texts = [task for task in base.data if isinstance(task, TextTask)] if base else []
    shown = {name: getattr(texts[0], name) for name in TEXT_FIELDS} if texts else {}
    shown |= {name: value for name in TEXT_FIELDS if (value := getattr(arguments, name, None)) is not None}
    judged = {name: value for name in ("task", "reward") if (value := getattr(arguments, name)) is not None}
    judged_file = judged
    if base and not judged and isinstance(base.data[0], PromptFile) and not base.data[0].set:
        judged_file = {"task": base.data[0].task, "reward": base.data[0].reward}  # a file is judged as the run was
    tasks = [_suite(name, judged, judged_file, shown) for name in arguments.suite]
    scoring = base.scoring if base else Scoring()
    return build(RunConfig, {"data": tuple(tasks), "scoring": scoring, **shared}, "options"), tasks


def _placement(arguments: argparse.Namespace, base: RunConfig | None) -> Placement:
    """Return this process, or as many vLLM servers as this machine has GPUs for."""
    if arguments.engine != "vllm":
        return Placement()
    place = base.placement if base and base.placement.engine == "vllm" else Placement(engine="vllm")
    python = arguments.vllm_python or place.vllm_python
    place = replace(place, backend="local", servers=(), trainer_ranks=1, scorers=0, gpus=None, vllm_python=python)
    if arguments.device == "cpu":
        return replace(place, generators=1, tensor_parallel=1, gpus_per_generator="auto")
    import torch

    return replace(place, generators=max(1, torch.cuda.device_count() // place.tensor_parallel))


def _suite(name: str, judged: dict[str, Any], judged_file: dict[str, Any], shown: dict[str, Any]) -> PromptFile:
    """Return the task of a suite or of a file of prompts.

    Args:
        name: Name of a suite, NAME=FILE for a copy of one, or a file.
        judged: Task and reward of a suite, if they are not its own.
        judged_file: The same of a file.
        shown: How prompts are shown to the model.

    Raises:
        ConfigError: The name is neither a suite nor a file.
    """
    suite, equals, copy = name.partition("=")
    source: dict[str, Any] = {"path": name}
    if equals and suite in NAMED_SETS:
        source = {"set": suite, "path": copy}
    elif name not in NAMED_SETS:
        if "/" not in name and not Path(name).exists():
            raise ConfigError(
                f"--suite: got {name!r}{nearest(name, NAMED_SETS)}; allowed: a file of prompts, a hub name with a "
                f"slash, NAME=FILE for a copy of a suite, or one of {', '.join(NAMED_SETS)}"
            )
        source["name"] = Path(name).name.partition(".")[0]
        judged = judged_file
    return build(PromptFile, {**shown, **source, **judged}, "--suite")
