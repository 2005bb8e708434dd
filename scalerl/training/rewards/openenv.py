"""Environments of OpenEnv servers, as a task of `data.kind = "custom"` (docs/environments.md).

OpenEnv's `/reset` and `/step` over HTTP make a new environment for each request, so an episode is a WebSocket session:
{"type": "reset", "data": {"seed": 3}} and {"type": "step", "data": ACTION} are answered with {"type": "observation",
"data": {"observation": {...}, "reward": 0.5, "done": false}}, or {"type": "error", "data": {"code": ..., ...}}.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from scalerl.core.errors import ConfigError, short
from scalerl.core.files import parse_json
from scalerl.core.limits import SESSION_CLOSE_S
from scalerl.core.plugins import PluginError
from scalerl.training.rewards.base import judged_text

SESSIONS_FULL_S = 0.05
"""Pause in seconds before a session is asked for again, if the server has all that it allows."""


class OpenEnv:
    """A server whose `reset` takes a seed. Each reply replays the episode in a session of its own."""

    def __init__(
        self, url: str, prompt: str = "{text}", action: str = "", observation: str = "", wait_s: float = 45.0
    ) -> None:
        """Set what messages are made of, and how long to wait.

        Args:
            url: Address, such as "ws://localhost:8000".
            prompt: Prompt of a row, with {text} for the first observation and {seed}; prompts must differ.
            action: Field of the action that gets the completion; empty: the completion is the action in JSON.
            observation: Field of the observation that the policy gets; empty: all of them in JSON.
            wait_s: Longest wait for a session, and for each answer, seconds; less than `data.reply_s` and
                `data.start_s`, whose message does not name the server.
        """
        self._url, self._prompt, self._action, self._observation = url, prompt, action, observation
        self._wait_s = wait_s

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield a row for each seed."""
        for seed in count():
            yield {"prompt": self._prompt.format(text=self._episode(seed, [])[0], seed=seed), "seed": seed}

    def reply(self, row: Mapping[str, Any], messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Return the observation and the reward of the last turn, or at the end the rewards of all turns."""
        completions = [message["content"] for message in messages if message["role"] == "assistant"]
        text, rewards, done = self._episode(row["seed"], completions)
        return {"rewards": rewards} if done else {"reply": text, "reward": rewards[-1]}

    def _episode(self, seed: int, completions: Sequence[str]) -> tuple[str, list[float], bool]:
        """Return the last observation as text, the reward of each action, and whether the episode has ended."""
        try:
            from websockets.sync.client import connect
        except ImportError:
            raise ConfigError("data.function: OpenEnv needs a package: pip install websockets") from None
        until = time.monotonic() + self._wait_s
        while (left_s := until - time.monotonic()) > 0:
            with (
                self._answering(),
                connect(
                    f"{self._url}/ws", max_size=None, proxy=None, open_timeout=left_s, close_timeout=SESSION_CLOSE_S
                ) as socket,
            ):
                result = _exchange(socket, "reset", {"seed": seed}, left_s)
                if result is None:
                    time.sleep(SESSIONS_FULL_S)
                    continue
                text, rewards = self._text(result), list[float]()
                for completion in completions:
                    action = self._read(completion)
                    wrong = {"error": "the action is no JSON object"}
                    result = wrong if action is None else _exchange(socket, "step", action, self._wait_s) or {}
                    text = self._text(result)
                    rewards.append(float(result.get("reward") or 0))
                return text, rewards, bool(result.get("done"))
        raise PluginError(
            f"the OpenEnv server {self._url} has had no free session for {self._wait_s:g} s; raise its "
            "max_concurrent_envs, or the parameter wait_s"
        )

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Name the server in errors of the connection."""
        from websockets.exceptions import WebSocketException

        try:
            yield
        except TimeoutError:
            raise PluginError(
                f"the OpenEnv server {self._url} did not answer within {self._wait_s:g} s; see its log, or raise the "
                "parameter wait_s"
            ) from None
        except (OSError, WebSocketException) as error:
            raise PluginError(f"the OpenEnv server {self._url}: {type(error).__name__}: {error}") from None

    def _read(self, completion: str) -> dict[str, Any] | None:
        text = judged_text(completion).strip()
        try:
            action = {self._action: text} if self._action else parse_json(text)
        except ValueError:
            return None
        return action if isinstance(action, dict) else None

    def _text(self, result: Mapping[str, Any]) -> str:
        if "error" in result:
            return f"Error: {result['error']}"
        observation = result["observation"][self._observation] if self._observation else result["observation"]
        return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)


def _exchange(socket: Any, kind: str, data: Mapping[str, Any], limit_s: float) -> dict[str, Any] | None:
    """Return the server's answer, with `error` if the action is not valid; None if it has no session left.

    Raises:
        PluginError: The server answered with another error, or in another form.
        TimeoutError: It did not answer in time.
    """
    from websockets.exceptions import ConnectionClosed

    with suppress(ConnectionClosed):  # a full server closes the connection after its answer
        socket.send(json.dumps({"type": kind, "data": data}))
    text = socket.recv(limit_s)
    try:
        answer = parse_json(text)
        kind_of_answer, result = answer["type"], answer["data"]
        if not isinstance(result, dict) or (kind_of_answer == "observation" and "observation" not in result):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise PluginError(
            f'the OpenEnv server answered {kind} with {short(text, 200)}; expected {{"type": "observation", "data": '
            '{"observation": ..., "reward": ..., "done": ...}}; is it an OpenEnv server of version 0.3?'
        ) from None
    if kind_of_answer == "observation":
        return result
    if result.get("code") == "CAPACITY_REACHED":
        return None
    if result.get("code") == "VALIDATION_ERROR":
        return {"error": json.dumps(result.get("errors", result.get("message")), default=str)}
    raise PluginError(f"the OpenEnv server answered {kind} with {result.get('code')}: {result.get('message')}")
