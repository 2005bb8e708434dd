"""Lists the code that a configuration runs and the addresses that it sends data to, and asks the user once about both.

A configuration from someone else can name any function, executable and address. What the user typed, passed from Python
or confirmed is remembered by a hash of its content.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.files import cache_root, is_own, read_json, write_whole
from scalerl.core.printable import printable
from scalerl.training.config.data import AgentTask, CustomTask, EnvironmentTask, PromptFile
from scalerl.training.config.model import HuggingFaceModel
from scalerl.training.config.recipe import Custom
from scalerl.training.config.run import Judge, RunConfig

ARGUMENTS = "placement.vllm_arguments"
"""A list of words; on a command line, it is recognized by the name of the field."""

AGENT_COMMAND = "data.command"
"""The same, for the program of an agent."""


@dataclass(frozen=True)
class Code:
    """Code of a configuration that runs with the user's permissions, or an address that it sends data to.

    Example: Code(field="data.reward", name="my_rewards:length", file="/home/me/my_rewards.py", digest="9f86d0...")
    """

    field: str
    """Field of the configuration."""
    name: str
    """Import path, program, arguments or address, as in the configuration."""
    file: str
    """File with the code; empty if there is none, as for arguments."""
    digest: str
    """Hexadecimal SHA-256 of the file and of the packages that contain it; empty if the code cannot be remembered."""

    @property
    def key(self) -> str:
        """Key under which the code is remembered: a hash of name and content."""
        return hashlib.sha256(f"{self.name}\0{self.digest}".encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.field} = {self.name[:200]}" + (f" ({self.file})" if self.file else "")


def code_of(config: RunConfig) -> list[Code]:
    """Return the code that a run of this configuration imports or starts, without importing it."""
    functions = [(f"recipe.{part}", getattr(config.recipe, part)) for part in ("loss", "advantage", "aggregation")]
    functions.append(("placement.engine", config.placement.engine))
    code = [_function(field, choice.function) for field, choice in functions if isinstance(choice, Custom)]
    for task in config.data:
        if isinstance(task, PromptFile) and task.reward is not None:
            code.append(_function("data.reward", task.reward.function))
        elif isinstance(task, CustomTask):
            code.append(_function("data.function", task.function))
        elif isinstance(task, AgentTask):
            code.append(_agent(task))
        elif isinstance(task, EnvironmentTask):
            module = task.environment.rpartition("/")[2].replace("-", "_")
            code.append(_code("data.environment", task.environment, _sources(module)))
    code += [_function("loggers.function", logger.function) for logger in config.loggers if isinstance(logger, Custom)]
    sandbox, placement = config.scoring.sandbox, config.placement
    programs = {"placement.vllm_python": placement.vllm_python, "scoring.sandbox.python": sandbox.python}
    code += [_program(field, program) for field, program in programs.items() if program]
    if placement.vllm_arguments:
        text = json.dumps(list(placement.vllm_arguments))
        code.append(Code(ARGUMENTS, text, "", _digest([text.encode()])))
    if sandbox.mode == "unsafe":
        # without a sandbox the model's programs are trusted code, so another model needs a new confirmation
        model = config.model.path if isinstance(config.model, HuggingFaceModel) else config.model.kind
        place = os.path.abspath(model) if os.path.exists(model) else model
        code.append(Code("scoring.sandbox.mode", "unsafe", "", _digest([b"unsafe", place.encode()])))
    return list(dict.fromkeys(code))


def addresses_of(config: RunConfig) -> list[Code]:
    """Return the places outside this machine and the run directory to which a run sends data or connects."""
    placement = config.placement
    places = [("loggers.wandb", "wandb") for logger in config.loggers if logger.kind == "wandb"]
    places += [("placement.servers", address) for address in placement.servers]
    if placement.backend == "ray" and placement.ray_address not in ("auto", "local"):
        places.append(("placement.ray_address", placement.ray_address))
    if any(isinstance(task, PromptFile) and task.task == "judge" for task in config.data):
        # it gets the completions, and the key of this user
        judge, default = config.scoring.judge, Judge()
        wanted = (("url", judge.url, default.url), ("key_variable", judge.key_variable, default.key_variable))
        places += [(f"scoring.judge.{field}", value) for field, value, usual in wanted if value and value != usual]
    return [Code(field, name, "", _digest([name.encode()])) for field, name in places]


def check_trust(configs: Iterable[RunConfig], source: str, *, trusted: bool = False, typed: Sequence[str] = ()) -> None:
    """Refuse code and addresses that this user has neither named nor confirmed; on a terminal, ask for confirmation.

    Args:
        configs: Configurations to run.
        source: Origin of the configurations, for the message.
        trusted: Whether the user gave `--trust`, or built the configuration in Python.
        typed: Words of the command line; code and addresses in them are trusted.

    Raises:
        ConfigError: There is unconfirmed code, or such an address, and the user did not confirm it or there is no
            terminal.
    """
    listed = list(dict.fromkeys(code for config in configs for code in (*code_of(config), *addresses_of(config))))
    if not listed:
        return
    confirmed = _remembered()
    if unknown := _unknown(listed, confirmed, trusted, typed):
        _confirm(unknown, source)
    _remember([code for code in listed if code.digest and code.key not in confirmed], confirmed)


def is_confirmed(config: RunConfig, *, trusted: bool, typed: Sequence[str]) -> bool:
    """Return whether the user has confirmed all code of a configuration; arguments as in `check_trust`."""
    return not _unknown(code_of(config), _remembered(), trusted, typed)


def _unknown(listed: Sequence[Code], confirmed: Mapping[str, Any], trusted: bool, typed: Sequence[str]) -> list[Code]:
    new = [code for code in listed if not code.digest or code.key not in confirmed]
    return [code for code in new if not trusted and not any(_spells(word, code) for word in typed)]


def _spells(word: str, code: Code) -> bool:
    """Return whether a word of the command line contains the full name of this code, not as part of a longer name."""
    name = code.field if code.field in (ARGUMENTS, AGENT_COMMAND) else code.name.replace("=", " ")
    return (
        re.search(rf"(?<![\w.:/-]){re.escape(name)}(?![\w.:/-])", word.removeprefix("--").replace("=", " ")) is not None
    )


def _confirm(unknown: Sequence[Code], source: str) -> None:
    listed = "; ".join(map(str, unknown[:5])) + (f"; and {len(unknown) - 5} more" if len(unknown) > 5 else "")
    does = "runs code or sends data to an address that was not confirmed on this machine, or has changed since"
    warning = f"{source} {does}: {listed}"
    permissions = "Code runs with your permissions, like any program that you start; an address gets texts and results"
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(f"{warning}. {permissions}: read it, then give --trust (in Python trust=True)")
    print(f"scalerl: {printable(warning)}. {permissions}.\nRun it? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was run; read it, and start again to confirm it")


def _store() -> Path:
    return cache_root() / "trusted.json"


def _remembered() -> dict[str, Any]:
    """Return the confirmed code. A store of another user, or an unreadable one, counts as empty: the user is asked."""
    try:
        return dict(read_json(_store())["code"]) if is_own(_store()) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _remember(codes: Sequence[Code], confirmed: Mapping[str, Any]) -> None:
    new = {code.key: {"field": code.field, "file": code.file} for code in codes}  # a name may contain a secret
    if not new:
        return
    with suppress(OSError):  # if the cache is not writable, the user is asked again next time
        _store().parent.mkdir(parents=True, exist_ok=True)
        write_whole(_store(), json.dumps({"code": {**confirmed, **new}}, indent=1) + "\n")


def _code(field: str, name: str, files: Sequence[str]) -> Code:
    """Return code that consists of files, of which the last is shown; without files it cannot be remembered."""
    try:
        digest = _digest(Path(file).read_bytes() for file in files) if files else ""
    except OSError:
        digest = ""
    return Code(field, name, files[-1] if files else "", digest)


def _function(field: str, name: str) -> Code:
    return _code(field, name, _sources(name.partition(":")[0]))


def _agent(task: AgentTask) -> Code:
    """Return the code of an agent: its function, or its command with the files among its words."""
    if task.function:
        return _function("data.function", task.function)
    program = shutil.which(task.command[0])
    files = [os.path.abspath(word) for word in task.command[1:] if os.path.isfile(word)]
    return _code(AGENT_COMMAND, json.dumps(list(task.command)), [os.path.abspath(program), *files] if program else [])


def _program(field: str, name: str) -> Code:
    program = shutil.which(name)
    return _code(field, name, [os.path.abspath(program)] if program else [])


def _digest(parts: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _sources(module: str) -> list[str]:
    """Return the files that importing a module would run, packages first; empty if one is not found.

    Nothing is imported: `importlib.util.find_spec` would import the packages of a dotted name.
    """
    top, *inner = module.split(".")
    spec = PathFinder.find_spec(top, [os.getcwd()])
    with suppress(ImportError, ValueError):
        spec = spec or importlib.util.find_spec(top)
    specs = [spec]
    for part in inner:
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations or []) if spec else None
        specs.append(spec)
    return (
        [os.path.abspath(part.origin) for part in specs if part and part.has_location and part.origin] if spec else []
    )
