"""Measures updates, transfers of weights and generation on this machine's GPUs, for Qwen3 of three sizes.

    python benchmarks/gpu.py [--sizes 0.6B 1.7B 8B] [--vllm PYTHON] [--trl PYTHON] [--tiny] [--out gpu.json]

Weights are random, so nothing is downloaded. PYTHON is that of an environment with vLLM or TRL; default: this one, if
it has them. Prints a table and what was left out, with the reason. --tiny does on CPU, in under a minute, all that has
a CPU form.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import engine
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import trainers
from engine import now
from packing import batch_of
from work import machine, random_qwen3, save_model, save_prompts

from scalerl.cluster.memory import adapter_params, trainer_memory
from scalerl.cluster.speed import GPUS
from scalerl.config.model import Lora
from scalerl.config.recipe import Recipe
from scalerl.learner.policy_learner import batch_flops
from scalerl.learner.single import SingleLearner
from scalerl.models.lora import LoraPolicy
from scalerl.models.policy import Policy
from scalerl.models.weights import WeightLayout
from scalerl.rollouts.directory import DirectoryChannel
from scalerl.rollouts.shared_memory import SharedMemoryChannel

FORMS = (
    ("compiled", True, False, False), ("compiled, recomputed", True, True, False), ("eager", False, False, False),
    ("eager, recomputed", False, True, False), ("adapters, recomputed", True, True, True),
)  # fmt: skip
"""Name of a form of the update, and whether layers are compiled, activations recomputed and adapters trained."""

CHUNK = 1 << 28
"""Bytes of one broadcast, as in scalerl/rollouts/vllm/nccl.py."""


class LeftOutError(Exception):
    """A measurement that this machine cannot do; the text is the reason."""


def update(size: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure the third of three updates: compiled and not, with activations recomputed and kept, and of adapters.

    `planned GB` is what `scalerl plan` expects; the head takes larger blocks where much memory is free.
    """
    found = {}
    for name, compiling, recomputing, adapters in FORMS:
        try:
            form = one_update(size, options, compiling, recomputing, adapters)
        except torch.OutOfMemoryError:
            form = {"out of memory": 1.0}
        found |= {f"{name}: {key}": value for key, value in form.items()}
        gc.collect()
        torch.cuda.empty_cache()
    return found


def one_update(
    size: str, options: argparse.Namespace, compiling: bool, recomputing: bool, adapters: bool
) -> dict[str, float]:
    policy, lora, tokens = policy_of(size, options), Lora(), options.tokens // 4
    entries = adapter_params(policy.sizes, lora) if adapters else 0
    planned = trainer_memory(policy.sizes, 1, tokens, recomputing, entries).total / 1e9
    if options.cuda and planned > torch.cuda.get_device_properties().total_memory / 1e9:
        return {"planned GB, too many": planned}
    learner = SingleLearner(
        LoraPolicy(policy, lora, seed=0) if adapters else policy, Recipe(), micro_batch_tokens=tokens,
        gradient_checkpointing=recomputing, compile=compiling and options.cuda, packing="packed",
    )  # fmt: skip
    batch = batch_of(torch.full((options.tokens // options.longest,), options.longest), policy.vocab_size)
    if options.cuda:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        began = now()
        learner.step(batch)
        seconds = now() - began
    found = {"s": seconds, "tokens/s": options.tokens / seconds}
    peaks = [gpu.flops for name, gpu in GPUS.items() if options.cuda and name in torch.cuda.get_device_name()]
    if peaks:
        found["MFU"] = batch_flops(learner.policy.sizes, batch, checkpointing=False) / seconds / peaks[0]
        found |= {"peak GB": torch.cuda.max_memory_allocated() / 1e9, "planned GB": planned}
    return found


def transfer(size: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure one transfer through shared memory and through a file: sent, and loaded into a policy."""
    policy, found = policy_of(size, options), {}
    layout = WeightLayout.of(policy.weights())
    with tempfile.TemporaryDirectory() as folder:
        channels = {"memory": SharedMemoryChannel(layout, 1), "files": DirectoryChannel(Path(folder))}
        for name, channel in channels.items():
            began = now()
            channel.send(1, policy.weights())
            sent = now()
            policy.load_weights(1, channel.receive(1))
            found |= {f"{name}, send s": sent - began, f"{name}, load s": now() - sent}
    return found


def broadcast(size: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure one broadcast from the first GPU to all others (on CPU: gloo between two processes)."""
    ranks = torch.cuda.device_count() if options.cuda else 2
    if ranks < 2:
        raise LeftOutError("one GPU; NCCL needs two")
    layout = WeightLayout.of(policy_of(size, options, "meta").weights())
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_broadcast, (ranks, folder, layout.total, options.cuda), nprocs=ranks)
        return {"s": float(Path(folder, "seconds").read_text())}


def _broadcast(rank: int, ranks: int, folder: str, size: int, cuda: bool) -> None:
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    dist.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks
    )
    block = torch.zeros(CHUNK, dtype=torch.uint8, device=device)
    for _ in range(2):  # the first opens the connections
        dist.barrier()
        began = now()
        for first in range(0, size, CHUNK):
            dist.broadcast(block[: size - first], 0)
        seconds = now() - began
    if rank == 0:
        Path(folder, "seconds").write_text(str(seconds))
    dist.destroy_process_group()


def generation(size: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure the torch engine, after a warm-up."""
    policy = policy_of(size, options)
    engine.SEQUENCES, engine.NEW = options.slots, options.new
    return {"tokens/s": [engine.engine(policy, options.slots, share=8) for _ in range(2)][1]}


IN_VLLM = """
import json, sys, time
from vllm import LLM, SamplingParams, TokensPrompt
model, slots, prompt, new = sys.argv[1], *map(int, sys.argv[2:])
llm = LLM(model, load_format="dummy", skip_tokenizer_init=True, max_model_len=prompt + new, max_num_seqs=slots)
parameters = SamplingParams(max_tokens=new, ignore_eos=True, detokenize=False, logprobs=0)
for start in (2, 3):
    prompts = [TokensPrompt(prompt_token_ids=[start + i % 97] * prompt) for i in range(slots)]
    began = time.perf_counter()
    llm.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - began
print(json.dumps({"tokens/s": slots * new / seconds}))
"""


def vllm_alone(size: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure vLLM without scalerl, with log-probabilities, after a warm-up."""
    if not options.vllm:
        raise LeftOutError("vLLM is not installed here (--vllm PYTHON)")
    with tempfile.TemporaryDirectory() as folder:
        policy_of(size, options, "meta").model.config.save_pretrained(folder)
        words = [options.vllm, "-c", IN_VLLM, folder, *map(str, (options.slots, engine.PROMPT, options.new))]
        done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise LeftOutError(f"vLLM failed: {(done.stderr.strip() or 'no message').splitlines()[-1][:200]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def whole_steps(size: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure whole steps of scalerl, and of TRL's GRPOTrainer on the same work (trainers.py)."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        save_model(size, place / "model")
        save_prompts(place / "prompts.jsonl", 400)
        found = trainers.compare(place / "run", place, options.trl, options.steps, options.steps // 3)
    return {"samples/s": found["scalerl"]} | ({"TRL samples/s": found["trl"]} if options.trl else {})


PARTS: dict[str, Callable[[str, argparse.Namespace], dict[str, float]]] = {
    "update": update,
    "transfer": transfer,
    "broadcast": broadcast,
    "generation": generation,
    "vLLM alone": vllm_alone,
    "whole steps": whole_steps,
}


def policy_of(size: str, options: argparse.Namespace, device: str = "") -> Policy:
    """Return a policy with random weights; its head multiplies in FP32."""
    cuda = options.cuda
    return Policy(random_qwen3(size, device or ("cuda" if cuda else "cpu"), torch.bfloat16 if cuda else torch.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["0.6B", "1.7B", "8B"])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--vllm", default=sys.executable if find_spec("vllm") else "")
    parser.add_argument("--trl", default=sys.executable if find_spec("trl") else "")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    options = parser.parse_args()
    options.cuda = torch.cuda.is_available() and not options.tiny
    if not (options.cuda or options.tiny):
        parser.error("torch sees no GPU here; --tiny measures what has a CPU form")
    options.tokens, options.longest, options.slots, options.new, options.steps = (
        (1024, 128, 16, 16, 3) if options.tiny else (65_536, 4096, 256, 512, 24)
    )
    results: dict[str, Any] = {"machine": machine(), "left out": {}}
    for size in ["165k"] if options.tiny else options.sizes:
        for part in options.parts:
            began = time.perf_counter()
            try:
                found = results[f"{size} {part}"] = PARTS[part](size, options)
            except (LeftOutError, torch.OutOfMemoryError) as error:
                reason = results["left out"][f"{size} {part}"] = str(error).split("\n")[0]
                print(f"{size:5s} {part:12s} left out: {reason}", flush=True)
            else:
                figures = ", ".join(f"{value:,.4g} {name}" for name, value in found.items())
                print(f"{size:5s} {part:12s} {figures}   ({time.perf_counter() - began:.0f} s)", flush=True)
            gc.collect()
            torch.cuda.empty_cache()
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    if not options.trl and "whole steps" in options.parts:
        print("left out: TRL is not installed here (--trl PYTHON)")


if __name__ == "__main__":
    main()
