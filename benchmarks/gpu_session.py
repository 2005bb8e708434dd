"""Uses an hour on a GPU by a plan: checks, tests and measurements, most valuable first, each with a time limit.

    make gpu-bundle                                               # before, where there is a network
    make gpu [ARGS="--minutes 60 --bundle gpu-bundle --out gpu.json --parts NAME ..."]

Every result is written to --out at once, with machine and commit. A further call goes on: it leaves out what is done on
the same machine with the same code, and tests that have passed on a GPU since they changed; --parts repeats parts.
Files in benchmarks/results/gpu-*.json count as earlier calls for the tests.
Without a GPU, or with --rehearse, each part runs its CPU form in tiny sizes, if it has one, and says what it lacks.

Models have random weights, so nothing is downloaded. Files without git: give --commit.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_bundle import BundleError, environment

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PYTEST = ("-m", "pytest", "-v", "-v", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout", "150")
VLLM = ("GPU", "vllm")


@dataclass(frozen=True)
class Part:
    """One part of the plan.

    Example: Part("updates", "tokens/s, MFU and memory", 200, 400, measured("updates"), ("GPU",), cpu_needs=())
    """

    name: str
    tells: str
    estimate_s: int
    """Expected duration on an H100: 20 s for imports, 60 s to start vLLM, work at the speeds of docs/gpu.md."""
    limit_s: int
    words: tuple[str, ...]
    """Arguments of Python."""
    needs: tuple[str, ...] = ("GPU",)
    cpu_needs: tuple[str, ...] | None = ()
    """What its CPU form needs; None: it has none."""


def measured(*words: str) -> tuple[str, ...]:
    """Return the arguments of a part that is a function of this file."""
    return (str(HERE / "gpu_session.py"), "--measure", *words)


PLAN = [
    Part("imports", "seconds of each import in a new process", 60, 180, measured("imports"), ()),
    Part("doctor", "what works here", 90, 300, ("-m", "scalerl.cli", "doctor")),
    Part("tests", "tests marked gpu that have not passed since they changed", 300, 540,
         (*PYTEST, "-m", "gpu", "-k", "not one_gpu")),
    Part("steps 0.6B", "whole steps, vLLM beside the trainer", 450, 540, measured("steps", "0.6B"), VLLM),
    Part("TRL 0.6B", "the same by TRL, vLLM colocated", 450, 540, measured("trl", "0.6B"), (*VLLM, "trl"), ("trl",)),
    Part("updates", "tokens/s, MFU, memory against the plan's: 0.6B, 1.7B, 4B", 200, 400, measured("updates")),
    Part("ten minutes", "the lab's recipe, killed and resumed", 540, 570, measured("recipe"), VLLM),
    Part("steps 1.7B", "whole steps, vLLM beside the trainer", 540, 570, measured("steps", "1.7B"), VLLM),
    Part("TRL 1.7B", "the same by TRL, vLLM colocated", 540, 570, measured("trl", "1.7B"), (*VLLM, "trl"), ("trl",)),
    Part("adapters 8B", "whole steps with LoRA, adapters to vLLM", 500, 570, measured("steps", "8B"), VLLM),
    Part("mixture", "swaps, kills and replay of a mixture in vLLM", 300, 540,
         (*PYTEST, "tests/rollouts/test_vllm_real.py", "-m", "vllm", "-k", "moe"), VLLM, ("vllm",)),
    Part("two ranks", "two ranks on one GPU, over gloo: NCCL allows one a GPU", 60, 180,
         (*PYTEST, "tests/test_gpu.py", "-k", "one_gpu"), cpu_needs=None),
]  # fmt: skip
"""Most valuable first. The whole steps and the tests have limits below ten minutes, a usual limit of a command."""


# ---------------------------------------------------------------------------------------------------------------- plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PLAN]
    parser.add_argument("--minutes", type=float, default=60.0, help="time for everything")
    parser.add_argument("--bundle", type=Path, default=Path("gpu-bundle"), help="folder of make gpu-bundle")
    parser.add_argument("--parts", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rehearse", action="store_true", help="CPU forms, although there is a GPU")
    parser.add_argument("--commit", help="commit of the files; default: git's")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        MEASUREMENTS[options.measure[0]](*options.measure[1:])
        return
    try:
        session = Session(options)
    except (BundleError, ValueError) as error:
        sys.exit(f"gpu_session: {error}")
    try:
        for part in PLAN:
            if not options.parts or part.name in options.parts:
                session.take(part)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on")
    print("\n".join(table(session.results)))


class Session:
    """The machine, the file of results and the time that is left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.ends = options, time.monotonic() + 60 * options.minutes
        self.results: dict[str, Any] = {"parts": [], "tests": {}, "starts": []}
        if options.out.exists():
            self.results |= read_results(options.out)
        self.python, paths = sys.executable, [str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]
        self.variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1",
                          "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # fmt: skip
        if not shutil.which("nvidia-smi"):
            print("no GPU here (there is no nvidia-smi): tiny CPU forms, without the bundle")
        elif options.bundle.exists():
            self.python = environment(options.bundle, sys.executable, ROOT / "build/gpu-environment")
        else:
            print(f"{options.bundle} is not there (make gpu-bundle): only packages of {sys.executable} are used")
        began = time.monotonic()
        found = json.loads(subprocess.check_output([self.python, "-c", PROBE], text=True, env=self.variables))
        first_s = round(time.monotonic() - began, 1)
        self.machine, self.there = found["machine"], set(found["there"])
        self.gpu = "GPU" in self.there and not options.rehearse
        self.commit, self.code = options.commit or commit(), digest(sorted((ROOT / "scalerl").rglob("*.py")))
        self.variables |= {"GPU_SESSION_TINY": "" if self.gpu else "1"}
        if "vllm" in self.there:
            self.variables["SCALERL_VLLM_PYTHON"] = self.python
        elif "SCALERL_VLLM_PYTHON" in os.environ:
            self.there.add("vllm")
        self.results["starts"] = [*self.results["starts"], {"machine": self.machine, "torch, transformers s": first_s}]
        print(f"{self.machine['gpu'] or self.machine['cpu']}, torch {self.machine['torch']}, commit {self.commit}; "
              f"torch and transformers took {first_s} s to import")  # fmt: skip

    def take(self, part: Part) -> None:
        """Run a part, unless it is done, lacks something or does not fit into the time that is left."""
        key = {"part": part.name, "machine": self.machine, "code": self.code, "rehearsal": not self.gpu}
        same = [one for one in self.results["parts"] if key.items() <= one.items()]
        if any(one["outcome"] == "done" for one in same) and not self.options.parts:
            return
        lacks, left = [need for need in part.needs if need not in self.there], self.ends - time.monotonic()
        record = {**key, "commit": self.commit, "at": time.strftime("%F %T"), "estimate_s": part.estimate_s}
        record |= {"lacks": lacks, "outcome": "unfinished"}
        self.results["parts"] = [one for one in self.results["parts"] if one not in same] + [record]
        if self.gpu and lacks:
            record["outcome"] = "left out"
        elif self.gpu and left < part.estimate_s:
            record["outcome"] = f"left out, with {max(0, left):.0f} s to go"
        elif not self.gpu and (part.cpu_needs is None or not self.there.issuperset(part.cpu_needs)):
            record["outcome"] = "not rehearsed"
        else:
            print(f"\n{part.name}: {part.tells}; about {part.estimate_s} s on a GPU", flush=True)
            try:
                self.run(list(part.words), record, min(part.limit_s, left))
            finally:
                self.save()
        self.save()
        print(f"{part.name}: {line(record)}", flush=True)

    def run(self, words: list[str], record: dict[str, Any], limit_s: float) -> None:
        """Run a part in a process group and a directory of its own; its record grows with every line of results."""
        record |= {"figures": {}, "steps": [], "tests": {}, "gpu": [], "output": []}
        if "pytest" in words:
            words += [word for test in self.passed() for word in ("--deselect", test)]
            words += [] if any(word.startswith("tests/") for word in words[len(PYTEST) :]) else gpu_files()
        began = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, utilization(began, record["gpu"]):
            process = subprocess.Popen(
                [self.python, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
                env=self.variables | {"TMPDIR": place, "GPU_SESSION_S": f"{limit_s:.0f}"}, start_new_session=True,
            )  # fmt: skip
            reader = threading.Thread(target=self.read, args=(process, record, began), daemon=True)
            reader.start()
            try:
                process.wait(limit_s)
                fine = (0, 5) if "pytest" in words else (0,)  # 5: every test has passed before
                record["outcome"] = "done" if process.returncode in fine else f"exit code {process.returncode}"
            except subprocess.TimeoutExpired:  # two steps are a result: the first is left out
                record["outcome"] = "done" if len(record["steps"]) > 1 else f"ended after {limit_s:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            reader.join(10)  # a server in a session of its own may keep the pipe open for a moment
        record["seconds"] = round(time.monotonic() - began, 1)
        record["figures"] |= summary(record)

    def read(self, process: subprocess.Popen[str], record: dict[str, Any], began: float) -> None:
        """Take figures, steps and outcomes of tests from the output of a part, and write each at once."""
        assert process.stdout is not None
        for text in process.stdout:
            print(f"  {text.rstrip()[:150]}", flush=True)
            test, found = re.match(r"(tests/\S+?::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", text), {}
            with contextlib.suppress(ValueError):
                found = json.loads(text) if text.startswith("{") else {}
            if {"step", "step_s"} <= found.keys():
                record["steps"].append({"at": round(time.monotonic() - began, 2), **found})
            elif found:
                record["figures"] |= {name: value for name, value in found.items() if isinstance(value, int | float)}
            elif test:
                record["tests"][test[1]] = test[2]
                if test[2] == "PASSED" and self.gpu:
                    now = digest(sources(ROOT / test[1].partition("::")[0]))
                    self.results["tests"][test[1]] = {"gpu": self.machine["gpu"], "commit": self.commit, "digest": now}
            else:
                record["output"] = [*record["output"][-39:], text.rstrip()[:400]]
                continue
            self.save()
        process.stdout.close()

    def passed(self) -> list[str]:
        """Return the tests that have passed on a GPU since they, or modules that they import, changed."""
        known: dict[str, Any] = {}
        for path in (HERE / "results").glob("gpu-*.json"):
            known |= read_results(path).get("tests", {})
        known |= self.results["tests"]
        now = {name: digest(sources(ROOT / name)) for name in {test.partition("::")[0] for test in known}}
        return [test for test, one in known.items() if one["digest"] == now[test.partition("::")[0]]]

    def save(self) -> None:
        """Write the results; a kill leaves the old file or the new one."""
        part = self.options.out.with_suffix(".part")
        part.write_text(json.dumps(self.results, indent=1) + "\n")
        part.replace(self.options.out)


PROBE = """
import json
from importlib.util import find_spec
from work import machine
found = machine()
there = [name for name in ("vllm", "trl") if find_spec(name)] + ["GPU"] * bool(found["gpu"])
print(json.dumps({"machine": found, "there": there}))
"""


def read_results(path: Path) -> dict[str, Any]:
    """Return a file of results.

    Raises:
        ValueError: It is none.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found | {}
    except (ValueError, TypeError):
        raise ValueError(f"{path} is not a file of results; give another name with --out, or remove it") from None


def commit() -> str:
    """Return git's commit, with + if files have changed since; empty without git."""
    words = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def digest(files: list[Path]) -> str:
    """Return a digest of the content of files."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files if file.exists())).hexdigest()[:16]


def gpu_files() -> list[str]:
    """Return the files with tests marked gpu, so that pytest imports no others."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "pytest.mark.gpu" in file.read_text()]


def sources(test: Path) -> list[Path]:
    """Return a test file, the modules of the project that it imports, and those of its helpers in tests/."""
    found, todo = set(), [test]
    while todo:
        file = todo.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        if ROOT / "tests" not in file.parents:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None)
                names = [module, *(f"{module}.{one.name}" for one in node.names)] if module else []
                names += [one.name for one in node.names]
                places = (ROOT, ROOT / "tests", file.parent)
                todo += [place / f"{name.replace('.', '/')}.py" for name in names for place in places]
    return sorted(found)


@contextlib.contextmanager
def utilization(began: float, samples: list[list[float]]) -> Iterator[None]:
    """Once a second, add seconds since the beginning, GPU, share of time with a kernel in % and MiB to the samples."""
    query = ["--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits", "-lms", "1000"]
    if not shutil.which("nvidia-smi"):
        yield
        return
    process = subprocess.Popen(["nvidia-smi", *query], stdout=subprocess.PIPE, text=True)

    def read() -> None:
        for text in process.stdout or ():
            with contextlib.suppress(ValueError):
                samples.append([round(time.monotonic() - began, 1), *map(int, text.split(","))])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        process.terminate()
        reader.join()


def summary(record: dict[str, Any]) -> dict[str, float]:
    """Return means over the steps after the first, and the share of time in which a GPU computes, by phase.

    A step begins with the trainer's wait for a batch, while engines sample; then it updates, while they go on.
    """
    found, steps = {}, record["steps"][1:]
    for name in ("step_s", "trainer_idle", "generator_idle", "generator_tokens_per_s"):
        if values := [one[name] for one in steps if name in one]:
            found[name] = statistics.mean(values)
    if steps and "samples" in steps[0]:
        found["samples/s"] = sum(one["samples"] for one in steps) / sum(one["step_s"] for one in steps)
    whole = [(one["at"] - one["step_s"], one["at"]) for one in steps]
    turns = [one["at"] - one["step_s"] * (1 - one["trainer_idle"]) for one in steps if "trainer_idle" in one]
    waits = [(first, turn) for (first, _), turn in zip(whole, turns, strict=False)]
    work = [(turn, last) for (_, last), turn in zip(whole, turns, strict=False)]
    for name, spans in {"": whole, ", trainer waits": waits, ", trainer updates": work}.items():
        inside = [share for at, _, share, _ in record["gpu"] if any(first <= at <= last for first, last in spans)]
        if inside:
            found[f"GPU busy{name}"] = statistics.mean(inside) / 100
    if record["gpu"]:
        found["peak GB"] = max(mib for *_, mib in record["gpu"]) * 2**20 / 1e9
    return found


def line(record: dict[str, Any]) -> str:
    """Return outcome, lacks and figures of a part in one line."""
    words = [record["outcome"] + (f" in {record['seconds']:.0f} s" if "seconds" in record else "")]
    words += [f"on a GPU about {record['estimate_s']} s"] if record["rehearsal"] else []
    words += [f"lacks: {', '.join(record['lacks'])}"] if record["lacks"] else []
    words += [f"{count} {kind.lower()}" for kind, count in Counter(record.get("tests", {}).values()).items()]
    return "; ".join([*words, *(f"{name} {value:,.4g}" for name, value in record.get("figures", {}).items())])


def table(results: dict[str, Any]) -> list[str]:
    """Return all records as a Markdown table."""
    lines = ["", "| part | machine | commit | result |", "| -- | -- | -- | -- |"]
    for one in results["parts"]:
        name = f"{one['machine']['cpu']}, tiny" if one["rehearsal"] else one["machine"]["gpu"]
        lines.append(f"| {one['part']} | {name} | {one['commit']} | {line(one)} |")
    return lines


# -------------------------------------------------------------------------------------------------------- measurements
# Each prints a line of JSON for a result. Its scratch directory is the session's, which ends it and all its processes.

TINY = bool(os.environ.get("GPU_SESSION_TINY"))
"""Whether a measurement has its CPU form."""

MICRO = 4
"""Sequences of a micro-batch of whole steps: TRL keeps all FP32 logits of them, 5 GB with 2,064 tokens."""

MEMORY = 0.3
"""Share of the GPU's memory that vLLM gets beside either trainer, TRL's default; it holds 76 sequences of 1.7B."""


@dataclass(frozen=True)
class Work:
    """Whole steps.

    Example: Work("0.6B", prompts=64, each=8, tokens=2048, slots=72)
    """

    size: str
    prompts: int
    each: int
    """Completions of a prompt."""
    tokens: int
    """Length limit, which nearly all completions of a random model reach."""
    slots: int
    steps: int = 4
    """Steps with the first, which is not counted."""

    def words(self, place: Path) -> list[str]:
        """Return the options of `scalerl train`; on a GPU with vLLM beside the trainer."""
        words = [
            "--model", f"{place}/model", "--data", f"{place}/prompts.jsonl", "--reward", "rewards:even_start",
            "--steps", str(self.steps + 1), "--recipe.prompts_per_step", str(self.prompts),
            "--recipe.generations_per_prompt", str(self.each),
            "--recipe.length", f"{{kind = 'none', max_tokens = {self.tokens}}}",
            "--recipe.zero_variance", "keep", "--recipe.truncated", "keep", "--recipe.retire_pass_rate", "none",
            "--rollouts.slots", str(self.slots), "--rollouts.expected_tokens", str(self.tokens),
            "--evaluation.prompts", "8", "--evaluation.samples", "1", "--evaluation.every", "1000",
            "--checkpoint.every", "1000", "--learner.gradient_checkpointing", "true",
            "--learner.micro_batch_tokens", str(MICRO * (self.tokens + 16)),
        ]  # fmt: skip
        if self.size not in GPU_WORK:
            return words
        words += ["--device", "cuda", "--placement.engine", "vllm", "--placement.gpus", "1"]
        if self.size == "8B":
            return [*words, "--model.lora.rank", "32"]
        return [*words, "--placement.vllm_arguments", json.dumps(["--gpu-memory-utilization", str(MEMORY)])]


GPU_WORK = {size: Work(size, prompts=64, each=8, tokens=2048, slots=72) for size in ("0.6B", "1.7B")}
GPU_WORK["8B"] = Work("8B", prompts=16, each=8, tokens=2048, slots=48)
TINY_WORK = Work("165k", prompts=8, each=8, tokens=32, slots=64)


def prepare(size: str) -> tuple[Work, Path]:
    """Save a random model, its tokenizer and prompts; return the work and their directory."""
    import torch
    from work import save_model, save_prompts

    work, place = TINY_WORK if TINY else GPU_WORK[size], Path(tempfile.mkdtemp())
    save_model(work.size, place / "model", *(() if TINY else ("cuda", torch.bfloat16)))
    save_prompts(place / "prompts.jsonl", 400)
    return work, place


def imports() -> None:
    """Measure the imports of everything that a start waits for, each in a new process and twice."""
    names = "torch transformers scalerl.training.loop.run trl.trainer.grpo_trainer vllm.entrypoints.openai.api_server"
    for name in names.split():
        for when in ("first", "again") if find_spec(name.partition(".")[0]) else ():
            began = time.monotonic()
            subprocess.run([sys.executable, "-c", f"import {name}"], check=True, stderr=subprocess.DEVNULL)
            say({f"{name}, {when} s": round(time.monotonic() - began, 2)})


def steps(size: str) -> None:
    """Measure whole steps of scalerl. The CPU form tries the configuration for a GPU in a dry run, too."""
    from work import random_qwen3

    work, place = prepare(size)
    if TINY:
        shutil.copytree(place, place / "dry")
        random_qwen3(size, "meta").config.save_pretrained(place / "dry/model")
        words = ["train", "--dry-run", "--trust", *GPU_WORK[size].words(place / "dry")]
        subprocess.run([sys.executable, "-m", "scalerl.cli", *words], check=True, stdout=subprocess.DEVNULL)
    process = scalerl("train", "--trust", "--run-dir", f"{place}/run", *work.words(place))
    follow(place / "run", work.steps, process, samples=work.prompts * work.each)


def trl(size: str) -> None:
    """Measure whole steps of TRL's GRPOTrainer on the same work."""
    work, place = prepare(size)
    settings = {
        "per_device_train_batch_size": MICRO, "gradient_accumulation_steps": work.prompts * work.each // MICRO,
        "num_generations": work.each, "max_completion_length": work.tokens, "gradient_checkpointing": True,
    }  # fmt: skip
    if not TINY:
        settings |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": MEMORY,
                     "vllm_max_model_length": work.tokens + 64}  # fmt: skip
    words = [str(HERE / "trl_baseline.py"), f"{place}/model", f"{place}/prompts.jsonl", str(work.steps), "1"]
    os.execv(sys.executable, [sys.executable, *words, json.dumps(settings)])


def updates() -> None:
    """Measure the third of three updates of 65,536 tokens: compiled, with activations kept and recomputed."""
    import gc

    import torch

    for size in ["165k"] if TINY else ["0.6B", "1.7B", "4B"]:
        for name, recomputing in (("kept", False), ("recomputed", True)):
            try:
                found = one_update(size, recomputing)
            except torch.OutOfMemoryError:
                found = {"out of memory": 1.0}
            say({f"{size}, {name}: {key}": value for key, value in found.items()})
            gc.collect()
            torch.cuda.empty_cache()


def one_update(size: str, recomputing: bool) -> dict[str, float]:
    """Measure one form of the update; MFU is without recomputation, and planned GB what `scalerl plan` expects."""
    import torch
    from packing import batch_of
    from work import random_qwen3

    from scalerl.training.config.recipe import Recipe
    from scalerl.training.learner.policy_learner import batch_flops
    from scalerl.training.learner.single import SingleLearner
    from scalerl.training.machines.memory import trainer_memory
    from scalerl.training.machines.speed import GPUS
    from scalerl.training.models.policy import Policy

    total, longest, device, dtype = 65_536, 4096, "cuda", torch.bfloat16
    if TINY:
        total, longest, device, dtype = 1024, 128, "cpu", torch.float32
    policy = Policy(random_qwen3(size, device, dtype))
    planned = trainer_memory(policy.sizes, 1, total // 4, recomputing, 0).total / 1e9
    if not TINY and planned > torch.cuda.get_device_properties().total_memory / 1e9:
        return {"planned GB, too many": planned}
    learner = SingleLearner(
        policy, Recipe(), micro_batch_tokens=total // 4, gradient_checkpointing=recomputing, compile=not TINY,
        packing="packed",
    )  # fmt: skip
    batch = batch_of(torch.full((total // longest,), longest), policy.vocab_size)
    torch.cuda.reset_peak_memory_stats() if not TINY else None
    for _ in range(3):
        began = time.perf_counter()
        learner.step(batch)  # waits for the device
        seconds = time.perf_counter() - began
    found = {"tokens/s": total / seconds}
    if TINY:
        return found
    if peaks := [gpu.flops for name, gpu in GPUS.items() if name in torch.cuda.get_device_name()]:
        found["MFU"] = batch_flops(policy.sizes, batch, checkpointing=False) / seconds / peaks[0]
    return found | {"peak GB": torch.cuda.max_memory_allocated() / 1e9, "planned GB": planned}


def recipe() -> None:
    """Run the lab's recipe until the time is over, with a kill -9 on the way, and a resume."""
    until, run = time.monotonic() + float(os.environ["GPU_SESSION_S"]) - 60, Path(tempfile.mkdtemp()) / "run"
    words = ["--placement.engine", "vllm", "--placement.gpus", "1", "--device", "cuda", "--steps", "2000"]
    if TINY:
        words = ["--device", "cpu", "--steps", "24", "--evaluation.every", "8", "--evaluation.prompts", "32"]
    process = scalerl("train", "--preset", "lab", "--run-dir", str(run), *words, "--checkpoint.every", "10")
    before = follow(run, 15 if TINY else 200, process, until=until - 200)
    process.kill()
    process.wait()
    process = scalerl("resume", str(run))
    after = follow(run, 20 if TINY else 2000, process, until=until, shown=len(before))
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    numbers = [row["step"] for row in after]
    if numbers != [*range(1, len(numbers) + 1)] or len(numbers) <= len(before):
        sys.exit(f"after the resume, metrics.jsonl has steps {numbers[:3]} to {numbers[-3:]}")
    rates = [json.loads(text)["pass_rate"] for text in (run / "points.jsonl").read_text().splitlines()]
    say({"steps before the kill": len(before), "steps": len(numbers), "exit code": code})
    say({"evaluations": len(rates), "first pass rate": rates[0], "last pass rate": rates[-1]})


def scalerl(*words: str) -> subprocess.Popen[bytes]:
    """Start a command."""
    return subprocess.Popen([sys.executable, "-m", "scalerl.cli", *words])


def follow(
    run: Path, count: int, process: subprocess.Popen[bytes], until: float = float("inf"), shown: int = 0,
    samples: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Print each step as it is written; return the rows after `count`, at the end of the process or of the time."""
    path = run / "metrics.jsonl"
    columns = ("step", "step_s", "trainer_idle", "generator_idle", "generator_tokens_per_s")
    while True:
        ended = process.poll() is not None
        texts = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(text) for text in texts if text.endswith("\n")]
        for row in rows[shown:]:
            say({name: row[name] for name in columns} | ({"samples": samples} if samples else {}))
        shown = max(shown, len(rows))
        if ended and len(rows) < count:
            sys.exit(f"scalerl ended with exit code {process.returncode} after {len(rows)} of {count} steps")
        if len(rows) >= count or time.monotonic() > until:
            return rows
        time.sleep(0.1)


def say(found: dict[str, Any]) -> None:
    """Print results for the session, which writes them down."""
    print(json.dumps(found), flush=True)


MEASUREMENTS: dict[str, Callable[..., None]] = {
    "imports": imports, "steps": steps, "trl": trl, "updates": updates, "recipe": recipe,
}  # fmt: skip

if __name__ == "__main__":
    main()
