"""A tiny random model over a few characters, so that the examples run anywhere in seconds: tiny_model("abc=")."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

QUICK = {
    "recipe__prompts_per_step": 8,
    "recipe__generations_per_prompt": 8,
    "recipe__retire_pass_rate": None,
    "recipe__off_policy": {"kind": "pipeline", "max_lag": 1},
    "recipe__optimizer": {"learning_rate": 1e-2, "warmup_steps": 1},
    "recipe__length": {"kind": "none", "max_tokens": 8},
    "evaluation": {"prompts": 16, "samples": 4, "every": 4},
    "steps": 20,
}
"""Settings with which such a model learns a simple task in seconds."""


def tiny_model(characters: str, seed: int = 0) -> Path:
    """Save an untrained Qwen3 of two layers with one token per character, and return its directory.

    Args:
        characters: Characters of prompts and completions; the end of a completion is a separate token.
        seed: Seed of the random weights.
    """
    import torch
    from tokenizers import Regex, Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    words = ["<pad>", "<end>", *dict.fromkeys(characters)]
    inner = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
    inner.pre_tokenizer, inner.decoder = Split(Regex(r"[\s\S]"), "isolated"), Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>")
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )
    path = Path(tempfile.mkdtemp(prefix="tiny-model-"))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def words(letters: str, count: int, seed: int = 0) -> Path:
    """Write a file of prompts, `{"prompt": "cab>"}`, each with four of the letters, and return its path."""
    rng = random.Random(seed)
    rows = sorted({"".join(rng.choice(letters) for _ in range(4)) for _ in range(count)})
    path = Path(tempfile.mkdtemp(prefix="words-")) / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{word}>"}) + "\n" for word in rows))
    return path


def show(run: Any, columns: Sequence[str]) -> None:
    """Print some columns of a run's metrics, one line per training step."""
    print(" ".join(f"{name:>15}" for name in ("step", *columns)))
    for line in (run.path / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        print(" ".join(f"{row[name]:>15.4g}" for name in ("step", *columns)))


if __name__ == "__main__":
    shutil.copytree(tiny_model(sys.argv[1]), sys.argv[2])
