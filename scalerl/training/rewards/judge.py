r"""Verifier that asks a model over HTTP: an OpenAI-compatible endpoint whose reply has a score (`scoring.judge`).

A reply without a score, an error of the server and a reply that takes too long are asked for again. What still fails is
a failure of the reward, which is left out and counted (scoring.py), never a score of 0.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from typing import Any

from scalerl.core.errors import short
from scalerl.core.types import Prompt
from scalerl.training.config.run import Judge, Scoring
from scalerl.training.rewards.base import Verdict, judged_text
from scalerl.training.rewards.repetition import question

RETRY_WAIT_S = 1.0
"""Wait before the first repetition of a request, seconds; it doubles each time."""

REMEMBERED_SCORES = 100_000
"""Number of scores that are kept by the content of their requests."""
MOST_REPLY_BYTES = 4 << 20
"""Size of the largest reply that is read."""
AGAIN = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Status of a server that may succeed later."""


class NoScore(Exception):
    """The judge gave no score."""


class Client:
    """Asks one judge, from any number of threads."""

    def __init__(self, settings: Judge) -> None:
        self.settings = settings
        self._scores: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._lock, self._next = threading.Lock(), 0.0

    def score(self, text: str) -> tuple[float, str]:
        """Return the score in [0, 1] and the judge's reply to a text.

        Raises:
            NoScore: No reply within `retries` had a score, or the server refused the request.
        """
        key = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
        with self._lock:
            if key in self._scores:
                self._scores.move_to_end(key)
                return self._scores[key]
        problem = ""
        for attempt in range(self.settings.retries + 1):
            self._wait(attempt)
            try:
                reply, (low, high) = self._post(text, attempt), self.settings.bounds
                scored = (self._read(reply) - low) / (high - low), reply
            except urllib.error.HTTPError as error:
                problem = f"status {error.code}"
                if error.code not in AGAIN:
                    break
            except (OSError, ValueError, LookupError, TypeError) as error:
                problem = str(error) or type(error).__name__
            else:
                with self._lock:
                    self._scores[key] = scored
                    if len(self._scores) > REMEMBERED_SCORES:
                        self._scores.popitem(last=False)
                return scored
        raise NoScore(f"the judge {self.settings.url} gave no score ({problem[:300]})")

    def _wait(self, attempt: int) -> None:
        """Wait for the rate limit, and before a repetition."""
        if attempt:
            time.sleep(min(RETRY_WAIT_S * 2 ** (attempt - 1), 60.0))
        if not self.settings.per_minute:
            return
        with self._lock:
            start = max(self._next, time.monotonic())
            self._next = start + 60 / self.settings.per_minute
        time.sleep(max(0.0, start - time.monotonic()))

    def _post(self, text: str, attempt: int) -> str:
        settings, ends = self.settings, time.monotonic() + self.settings.timeout_s
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "seed": attempt,  # so that a repetition may differ
        }
        headers = {"Content-Type": "application/json"}
        if settings.key_variable and (key := os.environ.get(settings.key_variable)):
            headers["Authorization"] = f"Bearer {key}"
        url = f"{settings.url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        received = bytearray()
        with urllib.request.urlopen(request, timeout=settings.timeout_s) as response:
            while part := response.read1(1 << 16):  # the timeout of a socket is that of each part
                received += part
                if time.monotonic() > ends:
                    raise TimeoutError(f"took longer than {settings.timeout_s:g} s")
                if len(received) > MOST_REPLY_BYTES:
                    raise ValueError(f"a reply of more than {MOST_REPLY_BYTES >> 20} MiB")
        content = json.loads(received)["choices"][0]["message"]["content"]
        if not isinstance(content, str):
            raise ValueError("a reply without text")
        return judged_text(content)

    def _read(self, reply: str) -> float:
        """Return the score in a reply, on the scale of the bounds."""
        matches = list(re.finditer(self.settings.pattern, reply))
        if not matches:
            raise ValueError(f"no score in {short(reply)}")
        last, (low, high) = matches[-1], self.settings.bounds
        group = 1 if last.re.groups else 0
        value = self.settings.words.get(last[group].strip().casefold())
        if value is None:
            if re.fullmatch(r"-?[1-9]\d{0,2},\d{3}", last[group]):
                raise ValueError(f"got the score {last[group]}, which may be a thousand times larger")
            value = float(last[group].replace(",", "."))
            _check(reply[last.end(group) :].partition("\n")[0], last[group], high)
        if not low <= value <= high:
            raise ValueError(f"the score {value:g} is not between {low:g} and {high:g}")
        return value


_SCALE = re.compile(
    r"[\s*_`'\"$)}\]]*(?:(?:points?|stars?|marks?)\b\s*)?[(\[]?\s*"
    r"(?:(?:/|\b(?:out\s+)?of(?:\s+(?:the|an?|max\w*|possible|total))*|\b(?:over|from)|\bmax(?:imum)?\b(?:\s+of)?:?|"
    r"(?:\bon\s+)?(?:\ba\s+)?\bscale\s+(?:of|from)?\s*\d+\s*(?:-|–|to))\s*(\d+(?:[.,]\d+)?)|\\?(%))",
    re.IGNORECASE,
)
"""The end of the scale behind a score: /10, out of 5, (of 5), on a scale from 1 to 5, %."""
_SEVERAL = re.compile(r"[.,]?\w|[\s*]*(?:[-–—~±+,|]|to\b|or\b|and\b)\s*-?\d|\s+-?\d", re.IGNORECASE)
"""What makes a number one of several, or the beginning of another one: `1 or 0`, `6-7`, `6th`."""


def _check(behind: str, score: str, high: float) -> None:
    """Raise a ValueError if the text behind a score has another scale than the bounds, or another score."""
    if scale := _SCALE.match(behind):
        end = 100.0 if scale[2] else float(scale[1].replace(",", "."))
        if end != high:
            raise ValueError(f"the score {score} is on a scale to {end:g}, not to {high:g} (scoring.judge.bounds)")
    elif _SEVERAL.match(behind):
        raise ValueError(f"no single score in {short(score + behind)}")


_client = Client(Judge())
"""The client of this process (`prepare`)."""


def prepare(scoring: Scoring) -> None:
    """Set the judge of this process."""
    global _client
    _client = Client(scoring.judge)


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return the judge's verdict on the text after the thinking.

    Raises:
        NoScore: The judge gave no score.
    """
    values = {"question": question(prompt), "answer": prompt.answer, "completion": judged_text(completion).strip()}
    text = re.sub(r"\{(question|answer|completion)\}", lambda match: values[match[1]], _client.settings.template)
    score, reply = _client.score(text)
    return Verdict(score >= _client.settings.pass_score, score, f"the judge: {' '.join(reply.split())[-200:]}")
