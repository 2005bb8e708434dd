"""Converts a GGUF file to a model directory that every library reads: dequantized weights, tokenizer and template.

    pip install gguf accelerate
    python benchmarks/convert_gguf.py SmolLM2-135M-Instruct.Q4_1.gguf my-model [--dtype bfloat16]

It needs memory for two copies of the model. Join a split file first: llama-gguf-split --merge.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def convert(file: Path, directory: Path, dtype: str) -> None:
    """Write the model of a GGUF file to a directory."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    read, info = AutoModelForCausalLM.from_pretrained(**where, dtype=dtype, output_loading_info=True)
    if info["missing_keys"]:  # transformers fills them with random numbers
        sys.exit(f"{file} lacks weights, such as {sorted(info['missing_keys'])[0]}")
    # `read` is marked as quantized and cannot be saved; a new model from its configuration can
    del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config, dtype=read.dtype)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    AutoTokenizer.from_pretrained(**where).save_pretrained(directory)
    model.save_pretrained(directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", default="float32", help="float32 or bfloat16 [float32]")
    options = parser.parse_args()
    convert(options.file, options.directory, options.dtype)
