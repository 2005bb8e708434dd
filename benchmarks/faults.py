"""Injects faults into real runs, and compares the results with those of an undisturbed run.

    python benchmarks/faults.py                     # all kinds (an hour of one core)
    python benchmarks/faults.py kills --count 10    # some

Every fault is followed by `scalerl resume`. At the end, weights, points, metrics and samples are compared with those of
an undisturbed run. Processes that are still alive one second after the trainer has ended are counted. Writes
benchmarks/results/faults.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import runs
from jumping_clock import JUMPS, JumpingClock

RESULTS = Path(__file__).parent / "results" / "faults.json"
WORDS = [*runs.SMALL, "--steps", "12"]
"""Updates, evaluations at 0, 6 and 12, and checkpoints every 4 updates."""
A_RUN = 10
"""Number of faults per run; then the run is resumed to its end."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Found:
    """Results for one kind of fault.

    Example: Found("kills", faults=50, runs=7, identical=7, left=0, tracebacks=0, seconds=610.0, remarks=[])
    """

    kind: str
    faults: int = 0
    """Number of faults that reached a process before its end."""
    runs: int = 0
    identical: int = 0
    """Number of runs whose results are identical to those of the undisturbed run."""
    left: int = 0
    """Number of processes that were alive one second after the trainer had ended."""
    tracebacks: int = 0
    wrong_codes: int = 0
    """Number of unexpected exit codes."""
    seconds: float = 0.0
    remarks: list[str] | None = None

    def note(self, text: str) -> None:
        """Record an unexpected event."""
        self.remarks = [*(self.remarks or []), text[-600:]]
        print("   ", text[-600:], flush=True)


class Campaign:
    """One model, one undisturbed run, and runs with faults."""

    def __init__(self, place: Path, seed: int, model: Path | None, words: Sequence[str] = WORDS) -> None:
        self.place, self.random, self.words = place, random.Random(seed), words
        self.scored: list[str] = []
        self.scored_outcome: dict[str, object] = {}
        self.model = model or runs.make_model(place / "model")
        runs.call("recipes")  # starts the server of forks, whose imports would count as the run's time
        began = time.monotonic()
        self.code_of(self.begin("whole"))
        self.whole_s, self.outcome = time.monotonic() - began, runs.outcome(place / "whole")
        print(f"undisturbed: {self.whole_s:.0f} s", flush=True)

    def begin(self, name: str) -> runs.Forked:
        """Start or resume a run."""
        path = self.place / name
        if (path / "config.toml").exists():
            return runs.start(["resume", str(path), "--trust"])
        return runs.start(["train", "--model", str(self.model), "--run-dir", str(path), *self.words])

    def code_of(self, process: runs.Forked) -> int:
        """Wait for a run that should finish; return its exit code."""
        text, _ = process.communicate(timeout=900)
        assert process.returncode == 0, text
        return 0

    def finish(self, name: str, found: Found) -> None:
        """Resume a run to its end, and compare."""
        process = self.begin(name)
        text, _ = process.communicate(timeout=900)
        found.runs += 1
        same = process.returncode == 0 and runs.outcome(self.place / name) == self.outcome
        found.identical += same
        if not same:
            found.note(f"{name} ended with {process.returncode} and is not identical: {text}")

    def disturb(self, found: Found, count: int, act: Callable[[runs.Forked, Found], None]) -> None:
        """Inject several faults per run at random times, then finish and compare."""
        number = 0
        while found.faults < count:
            name, number = f"{found.kind}-{number}", number + 1
            for _ in range(min(A_RUN, count - found.faults)):
                process = self.begin(name)
                time.sleep(self.random.uniform(0.0, min(15.0, 0.4 * self.whole_s)))
                alive = process.poll() is None
                act(process, found)
                if not alive:
                    break
                found.faults += 1
            self.finish(name, found)
            print(f"  {found.kind}: {found.faults} faults, {found.identical} of {found.runs} identical", flush=True)

    def wait(self, process: runs.Forked, found: Found, started: dict[int, str], codes: Sequence[int]) -> None:
        """Wait for the end after a fault, and check the exit code."""
        text, _ = process.communicate(timeout=120)
        left = runs.left_of(started, 1.0)
        found.left += len(left)
        if left:
            found.note(f"left: {left}")
        if "Traceback" in text:
            found.tracebacks += 1
            found.note(text)
        if process.returncode not in codes:
            found.wrong_codes += 1
            found.note(f"exit code {process.returncode}, expected {codes}: {text}")

    def kill(self, process: runs.Forked, found: Found) -> None:
        """Kill the trainer, its generator or all its child processes."""
        started = runs.descendants(process.pid)
        victims = self.random.choice(("trainer", "generator", "all"))
        generators = runs.children(process.pid)
        chosen = {"trainer": [], "generator": generators, "all": list(started)}[victims]
        for pid in [*chosen, *([] if victims == "generator" and generators else [process.pid])]:
            if process.poll() is None and os.path.exists(f"/proc/{pid}"):
                os.kill(pid, signal.SIGKILL)
        self.wait(process, found, started, (0, 1, -9))

    def signal_it(self, process: runs.Forked, found: Found) -> None:
        """Send a stop signal to the whole process group, as a terminal does."""
        number, started = self.random.choice(SIGNALS), runs.descendants(process.pid)
        if process.poll() is None:
            os.killpg(process.pid, number)
        # a process without signal handlers yet is ended by the signal
        self.wait(process, found, started, (0, 128 + number, -number))

    def pause(self, process: runs.Forked, found: Found) -> None:
        """Stop the trainer or its generator for a few seconds, then continue it."""
        pid = self.random.choice([process.pid, *runs.children(process.pid)])
        for number in (signal.SIGSTOP, signal.SIGCONT):
            if process.poll() is None and os.path.exists(f"/proc/{pid}"):
                os.kill(pid, number)
            time.sleep(self.random.uniform(0.5, 5.0) if number == signal.SIGSTOP else 0)
        self.wait(process, found, {}, (0,))


def kills(campaign: Campaign, found: Found, count: int) -> None:
    """Send SIGKILL at random times to the trainer, its generator, or every process."""
    campaign.disturb(found, count, campaign.kill)


def turn_kills(campaign: Campaign, found: Found, count: int) -> None:
    """Send SIGKILL to the trainer, its generator, every process, or one that computes a reply of an environment."""
    place, number, of_replies = campaign.place / "turns", 0, 0
    place.mkdir()
    os.chdir(place)
    words = [*runs.chained(place), "--data.params", "{wait_s = 0.02}"]
    turns = Campaign(place, campaign.random.randrange(1000), campaign.model, words)
    while found.faults < count:
        name, number = f"turns-{number}", number + 1
        process = turns.begin(name)
        for _ in range(min(A_RUN, count - found.faults)):
            time.sleep(turns.random.uniform(0.0, min(15.0, 0.4 * turns.whole_s)))
            if process.poll() is not None:
                break
            found.faults += 1
            if turns.random.random() < 0.4 and (pid := _replying(place, process)):
                with contextlib.suppress(ProcessLookupError):  # the run has just ended it
                    os.kill(pid, signal.SIGKILL)
                    of_replies += 1
            else:
                turns.kill(process, found)
                process = turns.begin(name)
        process.communicate(timeout=900)
        turns.finish(name, found)
        print(f"  {found.kind}: {found.faults} faults, {found.identical} of {found.runs} identical", flush=True)
    print(f"  {of_replies} of them to processes that computed a reply", flush=True)


def _replying(place: Path, process: runs.Forked) -> int:
    """Wait up to 5 s for a process of the run that computes a reply; return its id, or 0."""
    until = time.monotonic() + 5.0
    while process.poll() is None and time.monotonic() < until:
        begun = {int(file.name) for file in (place / "repliers").iterdir()}  # some are of runs that were killed
        if found := begun & runs.descendants(process.pid).keys():
            return found.pop()
    return 0


def signals(campaign: Campaign, found: Found, count: int) -> None:
    """Send SIGINT, SIGTERM or SIGHUP at random times."""
    campaign.disturb(found, count, campaign.signal_it)


def pauses(campaign: Campaign, found: Found, count: int) -> None:
    """Send SIGSTOP, and SIGCONT after 0.5 to 5 s."""
    for number in range(count):
        process = campaign.begin(f"paused-{number}")
        time.sleep(campaign.random.uniform(0.0, 0.7 * campaign.whole_s))
        found.faults += process.poll() is None
        campaign.pause(process, found)
        campaign.finish(f"paused-{number}", found)


def full_disk(campaign: Campaign, found: Found, count: int) -> None:
    """Fill the disk after a random number of bytes, then make space again. Needs permission to mount."""
    for number in range(count):
        path = campaign.place / f"full-{number}"
        path.mkdir()
        kilobytes = campaign.random.randint(100, 3000)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(path)], check=True)
        try:
            process = campaign.begin(path.name)
            text, _ = process.communicate(timeout=900)
            found.faults += process.returncode != 0
            if process.returncode != 0 and ("Traceback" in text or "no space left" not in text):
                found.tracebacks += 1
                found.note(f"{kilobytes} KiB: {text}")
            subprocess.run(["mount", "-o", "remount,size=1g", str(path)], check=True)
            campaign.finish(path.name, found)
        finally:
            subprocess.run(["umount", str(path)], check=True)


def scored_words(campaign: Campaign) -> list[str]:
    """Return the words of a run with a reward function, in the working directory; train it undisturbed once."""
    if not campaign.scored:
        os.chdir(campaign.place)
        campaign.scored = ["train", "--model", str(campaign.model), *runs.scored(campaign.place)]
        code, text = runs.call(*campaign.scored, "--run-dir", "scored", timeout=900)
        assert code == 0, text
        campaign.scored_outcome = runs.outcome(campaign.place / "scored")
    return campaign.scored


def judge(campaign: Campaign, found: Found, name: str, code: int, text: str) -> None:
    """Compare a run of `scored_words` that should have finished with the undisturbed one."""
    found.runs += 1
    found.tracebacks += "Traceback" in text
    found.wrong_codes += code != 0
    same = code == 0 and runs.outcome(campaign.place / name) == campaign.scored_outcome
    found.identical += same
    if not same:
        found.note(f"{name} ended with {code} and is not identical: {text}")
    print(f"  {found.kind}: {found.faults} faults, {found.identical} of {found.runs} identical", flush=True)


def clock_jumps(campaign: Campaign, found: Found, count: int) -> None:
    """Move the wall clock by an hour to forty days, forwards and backwards. Needs gcc."""
    words, number = scored_words(campaign), 0
    while found.faults < count:
        name, number = f"jumped-{number}", number + 1
        clock, said = JumpingClock(campaign.place), campaign.place / f"{name}.log"
        with said.open("w") as out:
            line = runs.command(*words, "--run-dir", name)
            process = subprocess.Popen(line, env=clock.environment, stdout=out, stderr=subprocess.STDOUT)
            while process.poll() is None:
                time.sleep(campaign.random.uniform(0.2, 1.5))
                clock.set(campaign.random.choice(JUMPS))
                found.faults += (campaign.place / name / "status.json").exists() and process.poll() is None
        judge(campaign, found, name, process.returncode, said.read_text())


def scorer_kills(campaign: Campaign, found: Found, count: int) -> None:
    """Send SIGKILL to a process while it scores."""
    words, number = scored_words(campaign), 0
    while found.faults < count:
        name, number, again = f"unscored-{number}", number + 1, 0.0
        process = runs.start([*words, "--run-dir", name])
        while process.poll() is None:
            scoring = list((campaign.place / "scorers").iterdir())
            if scoring and time.monotonic() > again:
                time.sleep(campaign.random.uniform(0.0, 0.05))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(scoring[0].name), signal.SIGKILL)
                    found.faults += 1
                scoring[0].unlink(missing_ok=True)
                again = time.monotonic() + campaign.random.uniform(1.0, 4.0)
            time.sleep(0.005)
        text, _ = process.communicate(timeout=60)
        judge(campaign, found, name, process.returncode or 0, text)


def flipped_bytes(campaign: Campaign, found: Found, count: int) -> None:
    """Change a byte in the newest checkpoint; the run must resume from the previous one."""
    for number in range(count):
        name = f"flipped-{number}"
        process = campaign.begin(name)
        steps = campaign.place / name / "checkpoints"
        runs.wait_for(lambda steps=steps: len(list(steps.glob("step_*"))) >= 2, 600, "two checkpoints")
        process.kill()
        process.communicate(timeout=60)
        newest = max(steps.glob("step_*"))
        file = campaign.random.choice([f for f in sorted(newest.rglob("*")) if f.is_file() and f.stat().st_size])
        content = bytearray(file.read_bytes())
        place = campaign.random.randrange(len(content))
        content[place] ^= 1 << campaign.random.randrange(8)
        file.write_bytes(content)
        found.faults += 1
        campaign.finish(name, found)


KINDS: dict[str, tuple[Callable[[Campaign, Found, int], None], int]] = {
    "kills": (kills, 50),
    "turn_kills": (turn_kills, 20),
    "signals": (signals, 24),
    "pauses": (pauses, 6),
    "full_disk": (full_disk, 8),
    "flipped_bytes": (flipped_bytes, 8),
    "clock_jumps": (clock_jumps, 40),
    "scorer_kills": (scorer_kills, 20),
}
"""Function and default number of faults, by kind."""


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help=f"some of {', '.join(KINDS)}; default: all")
    parser.add_argument("--count", type=int, help="faults of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="lab model of an earlier campaign; default: a new one")
    given = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"faults": {}}
    with tempfile.TemporaryDirectory(prefix="scalerl-faults-") as place:
        campaign = Campaign(Path(place), given.seed, given.model)
        for kind in given.kinds or KINDS:
            act, usual = KINDS[kind]
            found, began = Found(kind), time.monotonic()
            act(campaign, found, given.count or usual)
            found.seconds = round(time.monotonic() - began, 1)
            print(json.dumps(asdict(found)), flush=True)
            saved["faults"][kind] = {**asdict(found), "date": time.strftime("%Y-%m-%d"), "machine": machine}
            RESULTS.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
