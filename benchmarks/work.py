"""Helpers of the benchmarks: random Qwen3 models, prompts of random words, and training by the command line."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VOCABULARY = 512
PUBLISHED = {"vocab_size": 151936, "max_position_embeddings": 40960}
SIZES = {
    "3.3M": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 64},
    "165k": {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 2, "head_dim": 32},
    "136k": {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 32},
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128} | PUBLISHED,
    "1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128} | PUBLISHED,
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128} | PUBLISHED,
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128} | PUBLISHED | {"tie_word_embeddings": False},
}  # fmt: skip
"""Sizes of Qwen3 by their number of parameters."""

QUIET = ["--evaluation.every", "100000", "--evaluation.prompts", "64", "--checkpoint.every", "100000"]
"""Options of a run of the lab that is only timed."""

WARM_UP = 10
"""Steps at the beginning of a timed run that are left out."""


def random_qwen3(size: str, device: str = "cpu", dtype: Any = None) -> Any:
    """Return an untrained Qwen3."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = {"vocab_size": VOCABULARY, "max_position_embeddings": 512, "tie_word_embeddings": True}
    ids = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    torch.manual_seed(0)
    with torch.device(device):
        return Qwen3ForCausalLM._from_config(Qwen3Config(**(settings | SIZES[size] | ids)), dtype=dtype).eval()


def save_model(size: str, path: Path, device: str = "cpu", dtype: Any = None) -> None:
    """Save a random model, and a tokenizer with words `w0 w1 ...` of the same vocabulary size."""
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", *(f"w{i}" for i in range(2, VOCABULARY))]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    transformers.utils.logging.disable_progress_bar()
    random_qwen3(size, device, dtype).save_pretrained(path)
    tokenizer.save_pretrained(path)


def save_prompts(path: Path, count: int, tokens: int = 16) -> None:
    """Write prompts of random words, with answers that are not used."""
    rng = random.Random(0)
    prompts = [{"prompt": " ".join(f"w{rng.randrange(2, VOCABULARY)}" for _ in range(tokens)), "answer": "x"}
            for _ in range(count)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in prompts))


def train(run: Path, words: Sequence[str], **environment: str) -> list[dict[str, Any]]:
    """Train through the command line; return the metrics, one row per step."""
    command = [sys.executable, "-m", "scalerl.cli", "train", "--run-dir", str(run), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    return rows(run / "metrics.jsonl")


def seconds_a_step(words: Sequence[str]) -> float:
    """Return the mean time of a step of the lab, in seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        measured = train(Path(scratch) / "run", [*QUIET, *words])[WARM_UP:]
    return statistics.mean(row["step_s"] for row in measured)


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def machine() -> dict[str, Any]:
    """Return a description of this machine."""
    import torch
    import transformers

    cpuinfo = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
