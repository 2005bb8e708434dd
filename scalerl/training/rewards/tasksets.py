"""Environments of the `verifiers` package from version 0.4: tasksets, whose episodes call a model over HTTP.

A task that a model answers once, without tools, needs no endpoint: its rewards are functions of the answer. All others
are agents (`episode`), whose harness calls the policy. environments.py has the interface of versions 0.1.x.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError, call
from scalerl.training.config.data import EnvironmentTask

KEY = "SCALERL_POLICY_KEY"
"""Environment variable with the key of a rollout, because the package reads keys from variables."""


def installed() -> bool:
    """Return whether the installed version of `verifiers` has tasksets."""
    try:
        return find_spec("verifiers.v1") is not None
    except ModuleNotFoundError:
        return False


EPISODE = f"{__name__}:episode"
"""Import path of `episode`, which is the agent of a rollout."""


def load(environment: str, arguments: Mapping[str, Any], turns: int | None = None) -> Any:
    """Return an environment of the package, a `verifiers.v1.Env`.

    Its agents run in processes of this machine and talk without tools of their own (the harness `null`), unless the
    arguments or the taskset say otherwise. The package's default is a shell on a rented machine.

    Args:
        environment: Id of an installed taskset.
        arguments: The package's table `[env]`, such as {"taskset": {"largest": 9}}.
        turns: Most turns of an agent that has no `max_turns` of its own; None: no limit.

    Raises:
        ConfigError: The taskset is missing, or refuses its arguments.
    """
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import default_harness_id, load_environment, resolve_env_config

    given = arguments.get("taskset") or {}
    table: dict[str, Any] = {**arguments, "taskset": {**given, "id": environment}}
    try:
        for role, usual in call(lambda: agent_config_fields(resolve_env_config(table)), environment).items():
            limit = {"max_turns": turns} if turns is not None and usual.max_turns is None else {}
            agent = {"runtime": {"type": "subprocess"}, **limit, **(arguments.get(role) or {})}
            if default_harness_id(environment) == "bash":
                agent = {"harness": {"id": "null"}, **agent}
            table[role] = agent
        return call(lambda: load_environment(resolve_env_config(table)), environment)
    except PluginError as error:
        raise ConfigError(
            f"data.environment: cannot load {environment!r} with the arguments {dict(arguments)!r} ({error}); allowed: "
            "an installed taskset, and the entries of the table [env] of verifiers"
        ) from None


def has_harness(environment: str) -> bool:
    """Return whether a taskset has a harness of its own; the package starts the others with uv."""
    from verifiers.v1.utils.loaders import default_harness_id

    return bool(default_harness_id(environment) != "bash")


def roles(env: Any) -> list[str]:
    """Return the names of an environment's agents."""
    from verifiers.v1.configs.agent import agent_config_fields

    return list(agent_config_fields(env.config))


def rows(task: EnvironmentTask, held_out: int) -> list[dict[str, Any]]:
    """Return the rows of an environment's tasks, which `episode` takes: `task` has the task's data.

    Raises:
        ConfigError: The taskset is endless and `data.prompts` is not set, or has fewer tasks than that.
    """
    env = load(task.environment, task.arguments)
    if not env.taskset.bounded and task.prompts == "all":
        raise ConfigError(
            f"data.prompts: a value is needed, because the taskset {task.environment!r} is endless; allowed: the "
            "number of prompts in training"
        )
    most = None if task.prompts == "all" else task.prompts + held_out
    tasks = call(lambda: list(islice(env.taskset, most)), task.environment)
    if most is not None and len(tasks) < most:
        raise ConfigError(
            f"data.prompts: the taskset {task.environment!r} has {len(tasks)} tasks; allowed: at least {most} "
            "(data.prompts and held-out prompts together)"
        )
    shared = {"environment": task.environment, "arguments": task.arguments, "turns": task.turns}
    return [{"prompt": opening_of_task(one.data), **shared, "task": one.data.model_dump(mode="json")} for one in tasks]


def opening_of_task(data: Any) -> list[dict[str, str]]:
    """Return a task's system prompt and prompt as messages.

    Raises:
        ConfigError: A message has images, or calls of tools.
    """
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    messages = [{"role": one.role, "content": one.content} for one in data.prompt or []]
    if not all(isinstance(one["content"], str) for one in messages):
        raise ConfigError("data.environment: a prompt has messages without text; allowed: text")
    return [*system, *messages]


def answered_once(env: Any) -> bool:
    """Return whether a completion of the prompt is the whole episode, and can be scored without a run of it."""
    from verifiers.v1 import SingleAgentEnv, Task

    kind, config = type(env.taskset).task_type(), env.config.taskset
    tools = [*type(env.taskset).toolsets(config), *kind.toolsets(config.task)]
    if type(env) is not SingleAgentEnv or tools:
        return False
    harness = env.config.agent.harness  # None: the taskset has one of its own
    if harness is None or harness.id != "null":
        return False
    hooks = ("setup", "finalize", "stage_verifier", "score")
    if any(getattr(kind, name) is not getattr(Task, name) for name in hooks):
        return False
    task = kind.__new__(kind)
    task.config = config.task
    functions = [*task.hooks("reward"), *task.hooks("metric"), *(judge.score for judge in task.plugged_judges())]
    return not any(_needs_runtime(function) for function in functions)


def _needs_runtime(function: Any) -> bool:
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is parameter.empty


def rewards(
    environment: str, arguments: Mapping[str, Any], data: Mapping[str, Any], completions: Iterable[str]
) -> list[float]:
    """Return the reward of each completion of a task that is answered once.

    Args:
        environment: Id of the taskset.
        arguments: Arguments of `load`.
        data: The task's data, as in `rows`.
        completions: Texts.
    """
    env = _cached(environment, json.dumps(arguments, sort_keys=True))

    async def score_all() -> list[float]:
        return list(await asyncio.gather(*(_reward(env, data, text) for text in completions)))

    return asyncio.run(score_all())


async def _reward(env: Any, data: Mapping[str, Any], completion: str) -> float:
    from verifiers.v1 import AgentInfo, AssistantMessage, Response, Trace, TraceTask
    from verifiers.v1.graph import prepare_turn
    from verifiers.v1.state import state_cls
    from verifiers.v1.types import SystemMessage, UserMessage

    task = task_of(env, data)
    trace = Trace(
        task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=AgentInfo(config=env.config.agent),
        state=state_cls(type(task))(),
    )
    kinds = {"system": SystemMessage, "user": UserMessage, "assistant": AssistantMessage}
    prompt = [kinds[one["role"]](content=one["content"]) for one in opening_of_task(task.data)]
    message = AssistantMessage(content=completion)
    prepare_turn(trace, prompt).commit(
        Response(id="0", created=0, model="policy", message=message, finish_reason="stop")
    )
    trace.stop("agent_completed")
    await task.score(trace)
    return float(trace.reward)


def task_of(env: Any, data: Mapping[str, Any]) -> Any:
    """Return the task of a row."""
    kind = type(env.taskset).task_type()
    return kind(kind.data_type().model_validate(data), env.config.taskset.task)


def episode(row: Mapping[str, Any], base_url: str, api_key: str) -> dict[str, float]:
    """Run an episode of an environment, whose agents call the policy, as `data.function` of an agent.

    Args:
        row: A row of `rows`.
        base_url: Address of an OpenAI endpoint that serves the policy.
        api_key: Key of the rollout.

    Returns:
        `reward`, the mean over the agents that are trained, and the metrics of the environment.

    Raises:
        RuntimeError: The episode failed.
    """
    return asyncio.run(_episode(row, base_url, api_key))


def prepare(row: Mapping[str, Any]) -> None:
    """Load the environment of rows, so that the processes forked for episodes have it."""
    _cached(row["environment"], json.dumps(row.get("arguments") or {}, sort_keys=True), row.get("turns"))


episode.prepare = prepare  # type: ignore[attr-defined]  # for training/rewards/agents/nursery.py


async def _episode(row: Mapping[str, Any], base_url: str, api_key: str) -> dict[str, float]:
    from verifiers.v1 import EvalClientConfig, ModelContext

    os.environ[KEY] = api_key
    env = _cached(row["environment"], json.dumps(row.get("arguments") or {}, sort_keys=True), row.get("turns"))
    context = ModelContext("policy", EvalClientConfig(base_url=base_url, api_key_var=KEY))
    async with env.serving():
        ended = await env.run_episode(task_of(env, row["task"]), context)
    errors = [*ended.errors, *(error for trace in ended.traces for error in trace.errors)]
    if not ended.ok:
        causes = "; ".join(f"{one.type}: {one.message}" for one in errors) or "an agent did not finish"
        raise RuntimeError(f"{row['environment']}: {causes}")
    trained = [trace for trace in ended.traces if trace.agent.trainable]
    metrics = {name: value for trace in trained for name, value in trace.metrics.items() if value is not None}
    return {**metrics, "reward": sum(trace.reward for trace in trained) / max(1, len(trained))}


@lru_cache(maxsize=8)
def _cached(environment: str, arguments: str, turns: int | None = None) -> Any:
    return load(environment, json.loads(arguments), turns)
