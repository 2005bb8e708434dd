"""Notifications by a command or a webhook about the end of a run, a falling metric or an identified ceiling."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.config.loggers import Notify
from scalerl.core.signals import SAFE_PATH
from scalerl.loggers.thread import Record, Worker
from scalerl.view.run import RunView
from scalerl.view.warnings import FALLING, news

NAME = "notify"
"""Name of the notifications in loggers.json and in messages."""


class NotSent(RuntimeError):
    """A message was not delivered to its command or webhook."""


class Notifier:
    """Checks evaluations and sends messages; all methods run in the thread of `worker`."""

    def __init__(self, settings: Notify, run: Path, record: Record) -> None:
        """Prepare for a run; the record contains the messages sent before it was resumed."""
        self.worker = Worker(NAME)
        self._settings, self._run, self._record = settings, run, record
        self._falling = {FALLING + task for task in record.get(NAME, "falling", [])}
        self._identified = set(record.get(NAME, "identified", []))
        self._last: RunView | None = None
        self._step = 0

    def row(self, row: Mapping[str, Any]) -> None:
        """Set the number of updates so far."""
        self._step = int(row["step"])

    def evaluation(self, view: RunView) -> None:
        """Send a message about a falling metric and about an identified ceiling, each once per task."""
        self._last, self._step = view, max(self._step, view.evaluated_at)
        if view.evaluated_at <= self._record.get(NAME, "evaluation", -1):
            return
        falls = {key: text for key, text in view.warnings().items() if key.startswith(FALLING)}
        told = [("falling", key.removeprefix(FALLING), text) for key, text in news(falls, self._falling)]
        for task, ahead in view.outlooks().items():
            if ahead.fit.identified and task not in self._identified:
                self._identified.add(task)
                said = f"the forecast of {task} is identified: ceiling {ahead.fit.asymptote.mean:.3f}"
                told.append(("identified", task, said))
        falling = sorted(key.removeprefix(FALLING) for key in self._falling)
        self._record.put(NAME, evaluation=view.evaluated_at, falling=falling, identified=sorted(self._identified))
        for event, task, text in told:
            self._send(event, text, task)

    def finish(self, state: str, text: str) -> None:
        """Send a message about the end of the run, if it has finished or failed."""
        if state in ("finished", "failed"):
            self._send(state, text, "")

    def _send(self, event: str, text: str, task: str) -> None:
        """Send one message to the command and to the webhook.

        Raises:
            NotSent: At least one of them failed; both were tried.
        """
        if event not in self._settings.on:
            return
        message = self.message(event, text, task)
        settings, problems = self._settings, []
        sends = [partial(run_command, settings.command)] if settings.command else []
        for send in [*sends, *([partial(post, settings.webhook)] if settings.webhook else [])]:
            try:
                send(message, settings.timeout_s)
            except NotSent as error:
                problems.append(str(error))
        if problems:
            raise NotSent("; ".join(problems))

    def message(self, event: str, text: str, task: str) -> dict[str, Any]:
        """Return the message as JSON values; docs/watching.md lists the keys.

        Args:
            event: Finished, failed, falling or identified.
            text: Description of the event.
            task: Task of the fall or the forecast; empty: the first task of the run.
        """
        outlooks = self._last.outlooks() if self._last else {}
        points = self._last.points if self._last else {}
        task = task or next(iter(outlooks), next(iter(points), ""))
        ahead, point = outlooks.get(task), points[task][-1] if task else None
        advice = ahead.advice.sentence if ahead and ahead.advice else ""
        return {
            "event": event,
            "run": self._run.name,
            "path": str(self._run.absolute()),
            "host": socket.gethostname(),
            "step": self._step,
            "message": text,
            "task": task,
            "pass_rate": point.pass_rate if point else None,
            "stderr": point.stderr if point else None,
            "forecast": [[at.mean, at.low, at.high] for at in ahead.forecast.at] if ahead else None,
            "identified": ahead.fit.identified if ahead else None,
            "advice": advice,
            "text": f"{self._run.name} {event} at step {self._step}: {text}" + (f"\n{advice}" if advice else ""),
        }


def run_command(words: tuple[str, ...], message: Mapping[str, Any], timeout_s: float) -> None:
    """Run a command with a message: as JSON on standard input, and its texts in the environment as SCALERL_...

    Args:
        words: Program and arguments.
        message: Result of `Notifier.message`.
        timeout_s: Time limit in seconds, after which the command and its children are killed.

    Raises:
        NotSent: The command cannot be started, takes too long or ends with an error.
    """
    texts = {f"SCALERL_{key.upper()}": str(message[key]) for key in ("event", "run", "path", "step", "text", "advice")}
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
                env={**{key: value for key, value in os.environ.items() if (key, value) != SAFE_PATH}, **texts},
            )  # fmt: skip
        except OSError as error:
            raise NotSent(f"the command {words[0]!r} cannot be started ({error.strerror})") from None
        try:
            process.communicate((json.dumps(message) + "\n").encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NotSent(f"the command {words[0]!r} took over {timeout_s:g} s and was killed") from None
        if process.returncode:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().rpartition("\n")[2][:200]
            raise NotSent(f"the command {words[0]!r} ended with exit code {process.returncode}: {last}")


def post(url: str, message: Mapping[str, Any], timeout_s: float) -> None:
    """Send a message as JSON by POST.

    Args:
        url: URL of the webhook.
        message: Result of `Notifier.message`.
        timeout_s: Time limit of the connection and of each response, seconds.

    Raises:
        NotSent: There was no response, or an error. The error does not contain the URL, which may contain a secret.
    """
    body = json.dumps(message).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "scalerl"}
    try:
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        urllib.request.urlopen(request, timeout=timeout_s).close()
    except (OSError, ValueError) as error:  # HTTPError and URLError are OSErrors; ValueError: invalid URL
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise NotSent(f"the webhook did not accept the message ({error})") from None
