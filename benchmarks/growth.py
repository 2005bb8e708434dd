"""How cost grows: seconds and memory of every dimension of a run at three sizes, and their slopes.

    python benchmarks/growth.py                                        # all rows, about ten minutes
    python benchmarks/growth.py --rows prefill prompts --json growth.json
    python benchmarks/growth.py --scale 0.1                            # a tenth of each size, to try it

Each measurement is a process of its own: CPU seconds (of its children too), and the largest resident memory beyond what
it had before. A slope is that of a straight line through the logarithms of sizes and values: 1 is in proportion, 0 is
constant. Values below 0.05 s or 20 MB have no slope, because they are mostly noise. Rows of one file are merged, so
that rows can be measured one after the other into the same JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "view")]

LEAST_S, LEAST_MB = 0.05, 20.0
"""Values below which a slope is noise."""

Values = dict[str, float]


class Meter:
    """CPU seconds and memory of a block."""

    def __init__(self) -> None:
        self.values: Values = {}

    @contextlib.contextmanager
    def measured(self, name: str = "") -> Iterator[None]:
        """Measure a block as `NAMEcpu_s` and `NAMEmb`."""
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM then begins at the present size
        before, began = _status("VmRSS"), _cpu_s()
        yield
        self.values[f"{name}cpu_s"] = _cpu_s() - began
        self.values[f"{name}mb"] = _status("VmHWM") - before


def _cpu_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _status(name: str) -> float:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1e3


# ---------------------------------------------------------------------------------------------------------------- rows


def frontier_runs(runs: int, meter: Meter, place: Path, per_setting: int = 5) -> None:
    """A frontier of runs, five of each setting."""
    from scalerl.reading.curves import Curve, fit, frontier, sigmoid

    kinds = 20
    rng, fits, settings = np.random.default_rng(0), [], []
    compute = np.linspace(0, 8000.0, 31)
    for width in np.geomspace(32, 256, kinds):
        level = sigmoid(compute, 0.5 + 0.04 * np.log2(width), 1.5, 900.0 * width / 64, 0.2)
        fits.append(fit(Curve(compute, level + 0.003 * rng.standard_normal(31), axis="device_hours")))
    for width in np.geomspace(32, 256, max(kinds, -(-runs // per_setting))):
        settings += [{"width": float(width)}] * per_setting
    settings = settings[:runs]
    with meter.measured():
        frontier([fits[i * kinds // runs] for i in range(runs)], settings, 8000.0, published=False)


def frontier_settings(runs: int, meter: Meter, place: Path) -> None:
    """A frontier of runs, each of another setting."""
    frontier_runs(runs, meter, place, per_setting=1)


def prefill_long(tokens: int, meter: Meter, place: Path) -> None:
    """One prompt of many tokens and 63 of 16."""
    prefill([tokens, *[16] * 63], meter)


def prefill_many(prompts: int, meter: Meter, place: Path) -> None:
    """One prompt of 4,096 tokens and many of 16."""
    prefill([4096, *[16] * prompts], meter)


def prefill(lengths: Sequence[int], meter: Meter) -> None:
    import torch
    from work import random_qwen3

    from scalerl.training.engines.engine import Sampling
    from scalerl.training.engines.local.torch_engine import TorchDecoder
    from scalerl.training.models.policy import Policy

    torch.set_num_threads(1)
    policy = Policy(random_qwen3("165k"))
    prompts = [tuple((7 * i + j) % 500 for j in range(length)) for i, length in enumerate(lengths)]
    decoder = TorchDecoder(policy, len(prompts), max(lengths) + 32, Sampling())
    with meter.measured():
        decoder.prefill(np.arange(len(prompts)), prompts)
    state = decoder.state(np.asarray(lengths))
    meter.values["checkpoint_mb"] = sum(tensor.nbytes for tensor in state["tensors"].values()) / 1e6


def backtest(evaluations: int, meter: Meter, place: Path) -> None:
    """A backtest of a run with many evaluations."""
    from simulated_runs import run

    from scalerl.reading.curves import backtest

    curve = run(points=evaluations)
    with meter.measured():
        backtest(curve)


def plan(arms: int, meter: Meter, place: Path) -> None:
    """A check of the plan of a study, which every look at the study makes."""
    from scalerl.training.config import LAB
    from scalerl.training.study.plan import Arm, Plan, checked_plan

    rates = [1e-4 * (1 + i / arms) for i in range(arms)]
    made = Plan(
        name="growth",
        reference="arm-0",
        seeds=(0,),
        base=LAB,
        arms=tuple(
            Arm(name=f"arm-{i}", changes={"recipe": {"optimizer": {"learning_rate": rate}}})
            for i, rate in enumerate(rates)
        ),
    )
    with meter.measured():
        checked_plan(made)


def evaluation(rollouts: int, meter: Meter, place: Path) -> None:
    """An evaluation over scripted engines, from the request to the scores."""
    from scripted_worker import NumberChannel, Scored, ScriptedSpec, weights

    from scalerl.core.types import Prompt, Visit
    from scalerl.training.config.recipe import PipelineRL
    from scalerl.training.engines.pipeline import Pipeline
    from scalerl.training.loop.evaluation import PointTally
    from scalerl.training.loop.evaluator import HeldOut, Snapshot

    visits = [Visit(Prompt(f"{i:016x}", "", (1, 2, 3), "", "test"), 0, i) for i in range(rollouts // 8)]
    pipeline = Pipeline(ScriptedSpec(PipelineRL(max_lag=2)), NumberChannel(), Scored)
    tally = PointTally(HeldOut(tuple(visits), (8,) * len(visits), (), frozenset(), 0), None)
    with meter.measured():
        pipeline.start(weights, 0, visits[:9])
        pipeline.evaluate(0, weights, visits, 8, tally.add)
        pipeline.close()
    assert tally.evaluated(Snapshot(0, 0.0, 0.0, 0), 0.0, None).points[0].prompts == len(visits)


def prompts(rows: int, meter: Meter, place: Path) -> None:
    """Reading, tokenizing and splitting the rows of a file, their digests, both again, and a checkpoint."""
    import os

    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    from scalerl.training.config.data import PromptFile
    from scalerl.training.config.model import HuggingFaceModel
    from scalerl.training.config.run import RunConfig
    from scalerl.training.learner.checkpoint import save_state
    from scalerl.training.loop.inputs import prompt_inputs
    from scalerl.training.prompts.curriculum import Curriculum
    from scalerl.training.prompts.dataset import load_prompts

    words, rng = np.array(["apple", "tree", "number", "seven", "how", "many"]), np.random.default_rng(0)
    texts = [" ".join(words[row]) for row in rng.integers(0, len(words), (min(rows, 1000), 30))]
    with (place / "prompts.jsonl").open("w") as file:
        for i in range(rows):
            row = {"prompt": f"Question {i}: {texts[i % len(texts)]}?", "answer": str(i % 97)}
            file.write(json.dumps(row) + "\n")
    pieces = Tokenizer(BPE())
    pieces.pre_tokenizer, pieces.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = ByteLevel.alphabet()
    pieces.train_from_iterator(texts, BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<e>", pad_token="<p>")
    config = RunConfig(model=HuggingFaceModel(path="x"), data=(PromptFile(path=str(place / "prompts.jsonl")),))
    os.environ["SCALERL_CACHE"] = str(place / "cache")
    for name in ("", "again_"):
        split = None  # the first ones would count as memory that is free for the second
        with meter.measured(name):
            split = load_prompts(config, tokenizer)
            prompt_inputs(split)
    curriculum = Curriculum(split.training, 0, 0.9)
    for visit in curriculum.draw(len(split.training) // 2):
        curriculum.record(visit, 0.5)
    began = time.process_time()
    save_state(place, "trainer", {"curriculum": curriculum.state()})
    meter.values["checkpoint_cpu_s"] = time.process_time() - began
    meter.values["checkpoint_mb"] = (
        sum((place / f"trainer.{kind}").stat().st_size for kind in ("json", "safetensors")) / 1e6
    )


def step_evaluations(evaluations: int, meter: Meter, place: Path) -> None:
    """The last hundredth of the evaluations of a long run, each judged and shown if it is due."""
    import io

    from rich.console import Console

    from scalerl.core.types import EvalPoint
    from scalerl.training.config import LAB
    from scalerl.training.loop.display import RunDisplay
    from scalerl.training.loop.records import Records
    from scalerl.training.loop.warnings import RunWarnings

    def point(i: int) -> EvalPoint:
        rate = 0.2 + 0.4 * i / (i + evaluations / 4)
        return EvalPoint(i, 1e-4 * i, 1e9 * i, 100 * i, "arithmetic", rate, 0.01, 64, 4)

    quiet = SimpleNamespace(add_points=lambda points: None, append=lambda *words: None)
    display = RunDisplay(LAB, Console(file=io.StringIO()))
    records = Records(quiet, display, RunWarnings(LAB))  # type: ignore[arg-type]
    last = evaluations // 50
    records.points = [point(i) for i in range(evaluations - last)]
    records._judged = len(records.points)
    with meter.measured():
        for i in range(evaluations - last, evaluations):
            records.evaluated([point(i)])
    meter.values["ms_per_evaluation"] = 1e3 * meter.values.pop("cpu_s") / last


def step_retired(retired: int, meter: Meter, place: Path) -> None:
    """Draws of a mixture most of whose prompts are retired: 200 steps of 16 prompts."""
    from scalerl.core.types import Prompt
    from scalerl.training.prompts.curriculum import Curriculum, Mixture

    parts = {}
    for task in ("a", "b"):
        pool = [Prompt(f"{i:016x}", "", (1,), "", task) for i in range(retired // 2 + 1000)]
        parts[task] = Curriculum(pool, 0, 0.9)
        for number, visit in enumerate(parts[task].draw(len(pool))):
            parts[task].record(visit, float(number < retired // 2))
        parts[task].draw(1)  # an epoch begins, which sorts its prompts
    mixture = Mixture(parts, {"a": 1.0, "b": 1.0})
    with meter.measured():
        for _ in range(200):
            for visit in mixture.draw(16):
                mixture.forget(visit)
            assert mixture.num_retired >= retired - 2
    meter.values["ms_per_step"] = 1e3 * meter.values.pop("cpu_s") / 200


def watch(runs: int, meter: Meter, place: Path) -> None:
    """The watcher over finished runs for ten seconds, and `ls` of them."""
    from watched import write_run

    from scalerl.cli.main import main
    from scalerl.reading.pages.watcher import POLL_S, Watcher

    template = write_run(place / "template", rows=60, points=12, steps=60)
    for number in range(runs):
        copy = Path(shutil.copytree(template, place / "runs" / f"run-{number:05d}")) / "points.jsonl"
        copy.write_text(
            copy.read_text().replace('"stderr": 0.006', f'"stderr": 0.006{number:05d}')
        )  # equal fits are kept
    watcher = Watcher([place / "runs"])
    watcher._fits.submit(lambda: None).result()  # after all fits
    began, cpu_s = time.monotonic(), _cpu_s()
    while time.monotonic() - began < 10.0:
        watcher.poll()
        time.sleep(POLL_S)
    meter.values["cores"] = (_cpu_s() - cpu_s) / (time.monotonic() - began)
    watcher.close()
    with contextlib.redirect_stdout(io.StringIO()), meter.measured("ls_"):
        main(["ls", str(place / "runs")])


def imports(rows: int, meter: Meter, place: Path) -> None:
    """A log whose counter resets at every 100th row, and repeats half of its steps."""
    from scalerl.reading.logs.join import continued_rows, spent_by_counter

    numbers = np.arange(rows)
    steps = (numbers % 100 + 50 * (numbers // 100) + 1).astype(float)
    with meter.measured():
        spent_by_counter(steps, (numbers % 100).astype(float), True, "tokens")
        continued_rows(steps, np.arange(100, rows, 100))


def packing(sequences: int, meter: Meter, place: Path) -> None:
    """One layer's attention of many short sequences in a row."""
    import torch

    from scalerl.training.models.packing import Segments

    torch.set_num_threads(1)
    lengths = [16 - i * 8 // sequences for i in range(sequences)]
    query = torch.randn(1, 2, sum(lengths), 8)
    with meter.measured(), torch.no_grad():
        Segments(lengths, torch.device("cpu")).attention(query, query, query)


def shared_prompts(tokens: int, meter: Meter, place: Path) -> None:
    """One layer's attention of two long completions of a prompt; its work grows with the square, memory must not."""
    import torch

    from scalerl.training.models.prefix import SharedPrompts

    torch.set_num_threads(1)
    lengths, prompt = torch.tensor([tokens + 100, tokens + 100]), torch.tensor([100, 100])
    layout = SharedPrompts.of(lengths, prompt, torch.tensor([True, False]), torch.device("cpu"))
    query = torch.randn(1, 2, 2 * tokens + 100, 8)
    with meter.measured(), torch.no_grad():
        layout.attention(query, query, query)


class Row(NamedTuple):
    """A dimension, and the sizes at which it is measured."""

    measure: Callable[[int, Meter, Path], None]
    unit: str
    sizes: tuple[int, int, int]


ROWS: dict[str, Row] = {
    "frontier": Row(frontier_runs, "runs, five of a setting", (750, 1500, 3000)),
    "frontier-settings": Row(frontier_settings, "runs of different settings", (150, 300, 600)),
    "prefill": Row(prefill_many, "prompts of 16 tokens beside one of 4,096", (1024, 4096, 16_384)),
    "prefill-long": Row(prefill_long, "tokens of the longest of 64 prompts", (4096, 8192, 16_384)),
    "backtest": Row(backtest, "evaluations", (1000, 3000, 10_000)),
    "plan": Row(plan, "arms", (250, 500, 1000)),
    "evaluation": Row(evaluation, "rollouts", (4000, 8000, 16_000)),
    "prompts": Row(prompts, "rows", (12_500, 25_000, 50_000)),
    "evaluations": Row(step_evaluations, "evaluations so far", (5000, 20_000, 80_000)),
    "retired": Row(step_retired, "retired prompts", (25_000, 100_000, 400_000)),
    "watch": Row(watch, "finished runs", (250, 500, 1000)),
    "import": Row(imports, "rows of a log", (100_000, 300_000, 900_000)),
    "packing": Row(packing, "sequences in a row", (4096, 16_384, 65_536)),
    "shared": Row(shared_prompts, "tokens of a completion", (4096, 8192, 16_384)),
}


def slope(sizes: Sequence[int], values: Sequence[float], least: float) -> float | None:
    """Return the slope of the logarithms; None if the values are too small to have one."""
    if max(values) < least or min(values) <= 0:
        return None
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, least / 10)), 1)[0])


def measure_row(name: str, scale: float) -> dict[str, Any]:
    """Measure a row at its sizes, each in a process of its own."""
    row, values = ROWS[name], list[Values]()
    sizes = [max(1, int(size * scale)) for size in row.sizes]
    for size in sizes:
        words = [sys.executable, __file__, "--measure", name, str(size)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        values.append(json.loads(done.stdout.splitlines()[-1]))
    found: dict[str, Any] = {"unit": row.unit, "sizes": sizes, "values": {}, "slopes": {}}
    for key in values[0]:
        column = [one[key] for one in values]
        found["values"][key] = [round(value, 4) for value in column]
        least = (
            LEAST_MB if key.endswith("mb") else 0.001 if key == "cores" else 1.0 if key.startswith("ms") else LEAST_S
        )
        fitted = slope(sizes, column, least)
        found["slopes"][key] = None if fitted is None else round(fitted, 2)
    return found


def main() -> None:
    """Measure the rows and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all sizes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", nargs=2, metavar=("ROW", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        meter = Meter()
        with tempfile.TemporaryDirectory() as place:
            ROWS[options.measure[0]].measure(int(options.measure[1]), meter, Path(place))
        print(json.dumps(meter.values))
        return
    results: dict[str, Any] = {"rows": {}}
    if options.json and options.json.exists():
        results = json.loads(options.json.read_text())
    for name in options.rows:
        row = results["rows"][name] = measure_row(name, options.scale)
        row |= {"cpu": processor(), "date": datetime.now(UTC).date().isoformat()}
        print(f"{name}: {row['unit']} {', '.join(f'{size:,}' for size in row['sizes'])}")
        for key, column in row["values"].items():
            numbers = "  ".join(f"{value:10.3f}" for value in column)
            known = row["slopes"][key]
            print(f"  {key:<18} {numbers}   slope {'-' if known is None else known}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


def processor() -> str:
    """Return the name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
