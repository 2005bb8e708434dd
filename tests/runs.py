"""Real runs in separate processes, and the results that tests compare."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from forked import Forked

RECIPE = [
    "--recipe.prompts_per_step", "4", "--recipe.generations_per_prompt", "4", "--recipe.off_policy.max_lag", "4",
    "--recipe.length.thinking_tokens", "[12, 20]", "--recipe.optimizer.learning_rate", "1e-3",
    "--evaluation.prompts", "16", "--evaluation.samples", "2", "--evaluation.every", "6",
    "--checkpoint.every", "4", "--steps", "24",
]  # fmt: skip
"""A run of a few seconds on one core, for any task."""

SMALL = [*RECIPE, "--data.operations", "[1, 1]", "--data.prompts", "60"]
"""A run on additions of one step with every component of the recipe, several epochs and retired prompts."""


SCORED = """
import os, time
from pathlib import Path

def score(prompts, completions, **columns):
    begun = Path(__file__).with_name("scorers") / str(os.getpid())
    begun.touch()
    time.sleep(0.05)
    begun.unlink()
    return [len(text) % 3 / 2 for text in completions]
"""


def scored(place: Path) -> list[str]:
    """Write a reward function and its data; return the words of a run of 12 steps that uses them, in directory `place`.

    A file in place/scorers has the name of each process while it scores.
    """
    (place / "scorers").mkdir()
    (place / "scored.py").write_text(SCORED)
    rows = [{"prompt": f"{a}+{b}=<think>", "answer": str(a + b)} for a in range(10) for b in range(6)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--preset", "lab", "--data", "rows.jsonl", "--reward", "scored:score", *RECIPE, "--steps", "12"]


CHAINED = """
import os, re, time
from pathlib import Path

class Sums:
    def __init__(self, fails=0, wait_s=0.002):
        self.fails, self.wait_s = fails, wait_s
    def rows(self, count):
        for n in range(count):
            yield {"prompt": f"{n % 10}+{n // 10 % 10}=<think>", "more": n // 7 % 10}
    def reply(self, row, messages):
        begun = Path(__file__).with_name("repliers") / str(os.getpid())
        begun.touch()
        time.sleep(self.wait_s)
        begun.unlink(missing_ok=True)
        if self.fails and messages[-1]["content"] and row["more"] % self.fails == 0:  # not in the check before a run
            raise KeyError("no entry")
        said = [one["content"] for one in messages if one["role"] == "assistant"]
        a, b = map(int, re.findall(r"[0-9]", row["prompt"]))
        right = [(a + b) % 10, (a + b + row["more"]) % 10]
        score = sum(text[-1:] == str(digit) for text, digit in zip(said, right)) / 2
        return {"score": score, "right": 2 * score} if len(said) == 2 else f"{right[0]}+{row['more']}=<think>"
"""


def chained(place: Path) -> list[str]:
    """Write an environment of two turns; return the words of a run of 12 steps that uses it, in directory `place`.

    A file in place/repliers has the name of each process while it computes a reply.
    """
    (place / "repliers").mkdir()
    (place / "chained.py").write_text(CHAINED)
    return [
        "--preset", "lab", *RECIPE, "--data.kind", "custom", "--data.function", "chained:Sums", "--data.prompts", "60",
        "--data.turns", "2", "--data.reply_tokens", "6", "--steps", "12",
    ]  # fmt: skip


def make_model(path: Path, width: int = 32) -> Path:
    """Train a model on a few hundred traces, so that some of its answers pass, and save it."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()

    from scalerl.training.config import TinyModel, WarmStart
    from scalerl.training.config.data import ArithmeticTask
    from scalerl.training.loop import warm_start
    from scalerl.training.models.policy import Policy

    torch.set_num_threads(1)
    model = TinyModel(width=width, warm_start=WarmStart(steps=300, batch=32, step_noise=0.2, learning_rate=1e-2))
    torch.manual_seed(0)
    tokenizer = warm_start.make_tokenizer()
    policy = Policy(warm_start.make_model(model, tokenizer))
    warm_start._train(policy, model, (ArithmeticTask(operations=(1, 1)),), tokenizer, lambda row: None)
    policy.model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "scalerl.cli", *words]


def start(words: list[str], **options: str) -> Forked:
    """Start a command line in a separate process; `options` are environment variables."""
    return Forked(_without_replaced(words), {**os.environ, "COLUMNS": "200", **options})


def _without_replaced(words: list[str]) -> list[str]:
    """Remove options that a later option replaces, such as those of RECIPE; `scalerl` refuses both together."""
    kept: list[str] = []
    for word in words:
        while word.startswith("--") and (old := next((w for w in kept if w.startswith(f"{word}.")), None)):
            del kept[kept.index(old) : kept.index(old) + 2]
        kept.append(word)
    return kept


def finish(*words: str, **options: str) -> str:
    """Run a command line that must succeed to its end; return what it printed."""
    process = start(list(words), **options)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return text


def call(*words: str, timeout: float = 300.0) -> tuple[int, str]:
    """Run a command line to its end; return its exit code and what it printed."""
    process = start(list(words))
    text, _ = process.communicate(timeout=timeout)
    return process.wait(), text


def train(model: Path, path: Path, *words: str, **options: str) -> str:
    """Run `scalerl train` to its end; return what it printed."""
    return finish("train", "--model", str(model), "--run-dir", str(path), *SMALL, *words, **options)


def rows(path: Path, name: str) -> list[dict[str, Any]]:
    file = path / name
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


RECORDS = "rollouts/samples.bin"
TIMED = ("_s", "_hours", "_idle", "swap_ms", "parked")
"""Endings of the columns that depend on wall-clock time and differ from run to run."""


def outcome(path: Path) -> dict[str, Any]:
    """Return the results that must not depend on time: the last weights, the points, the metrics, the samples."""
    model, records = (
        hashlib.sha256((path / name).read_bytes()).hexdigest() for name in ("model/model.safetensors", RECORDS)
    )
    files = {
        name: [{k: v for k, v in row.items() if not k.endswith(TIMED)} for row in rows(path, name)]
        for name in ("points.jsonl", "metrics.jsonl", "rollouts.jsonl", "rollouts/samples.jsonl")
    }
    return {"model": model, RECORDS: records, **files}


def children(pid: int) -> list[int]:
    """Return the process ids of the generators that a process started."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        names = {c: Path(f"/proc/{c}/cmdline").read_text() + Path(f"/proc/{c}/comm").read_text() for c in listed}
        return [int(c) for c, name in names.items() if "spawn_main" in name]
    except (FileNotFoundError, ProcessLookupError):  # the process ended during the search
        return []


def descendants(pid: int) -> dict[int, str]:
    """Return the ids and start times of all descendants of a process; the time distinguishes reused ids."""
    parents = {found: stat[1] for found in _process_ids() if (stat := _stat(found))}
    wanted = {pid}
    while more := {p for p, parent in parents.items() if int(parent) in wanted} - wanted:
        wanted |= more
    return {p: stat[19] for p in wanted - {pid} if (stat := _stat(p))}


def everyone() -> dict[int, str]:
    """Return the ids and start times of all processes of this machine."""
    return {pid: stat[19] for pid in _process_ids() if (stat := _stat(pid))}


def left_of(processes: dict[int, str], seconds: float) -> list[str]:
    """Wait at most `seconds` for processes to end; return the names of those that still run."""
    until = time.monotonic() + seconds
    while True:
        left = [p for p, born in processes.items() if (stat := _stat(p)) and stat[19] == born and stat[0] not in "ZX"]
        if not left or time.monotonic() > until:
            return [f"{p} {command_of(p)}" for p in left]
        time.sleep(0.01)


def _process_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; state is at index 0, parent at 1, start time at 19."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for(condition: Any, seconds: float = 60.0, what: str = "") -> Any:
    """Wait until a function returns something true, and return that."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.01)
    return value
