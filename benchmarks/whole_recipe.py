"""Times the parts of a step with the whole recipe: math and code, 50M weights, 2,048 tokens of context.

    python benchmarks/whole_recipe.py [--steps 2] [--prompts 2] [--generations 4] [--out whole_recipe.json]

The model is a random Qwen3, so every completion thinks until it is interrupted. The phrase that ends the thinking
contains a program and an answer, so every completion is scored in a sandbox or by Math-Verify. A random model never
ends its answer; therefore truncated completions and prompts without variance are kept, so that the trainer has its full
work. There are as many slots as completions per batch. The first step is left out as a warm-up. A batch is 15,000
tokens, nearly all of them sampled.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from work import machine, train

SHAPE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 8,
         "num_key_value_heads": 4, "head_dim": 64}  # fmt: skip
VOCABULARY = 24_576
CONTEXT, PROMPT = 2048, 64
PHRASE = """
```python
a, b = map(int, input().split())
print(a + b)
```
It is \\boxed{42}. Answer:"""
"""Ends the thinking, and contains an answer for the verifiers of both tasks."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=2, help="P, half of them math and half code")
    parser.add_argument("--generations", type=int, default=4, help="G")
    parser.add_argument("--out", type=Path, default=Path("whole_recipe.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        parameters = save_model(place / "model")
        save_prompts(place)
        config = configuration(place, options)
        (place / "config.toml").write_text(config)
        rows = train(place / "run", [str(place / "config.toml")])
    found = [split(row) for row in rows[1:]]
    split_of_a_step = {name: statistics.median(row[name] for row in found) for name in found[0]}
    print(f"{parameters:,} weights, {options.prompts} prompts x {options.generations}, medians of {len(found)} steps")
    print("| part of a step | |\n|---|---|")
    for name, value in split_of_a_step.items():
        print(f"| {name} | {value:,.3g} |")
    figures = {"machine": machine(), "parameters": parameters, "split": split_of_a_step, "rows": rows}
    options.out.write_text(json.dumps(figures, indent=1) + "\n")


def save_model(path: Path) -> int:
    """Save a random Qwen3 and a byte-level BPE trained on the text of this project; return the number of weights."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    root = Path(__file__).parents[1]
    texts = [
        str(file)
        for folder in ("docs", "scalerl")
        for file in (root / folder).rglob("*")
        if file.suffix in (".md", ".py")
    ]
    inner = ByteLevelBPETokenizer()
    inner.train(texts, vocab_size=VOCABULARY, special_tokens=["<pad>", "<eos>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner._tokenizer, pad_token="<pad>", eos_token="<eos>")
    tokenizer.save_pretrained(path)
    ids = {"eos_token_id": 1, "pad_token_id": 0, "bos_token_id": None}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, tie_word_embeddings=True, **SHAPE, **ids)
    )
    model.save_pretrained(path)
    return sum(parameter.numel() for parameter in model.parameters())


def save_prompts(place: Path, count: int = 64) -> None:
    """Write sums as math prompts, and programs that add as code prompts with three tests each."""
    rng = random.Random(0)
    math, code = [], []
    for _ in range(count):
        a, b = rng.randrange(100), rng.randrange(100)
        math.append({"prompt": f"What is {a} + {b}?", "answer": str(a + b)})
        pairs = [(rng.randrange(1000), rng.randrange(1000)) for _ in range(3)]
        tests = {"inputs": [f"{x} {y}\n" for x, y in pairs], "outputs": [f"{x + y}\n" for x, y in pairs]}
        code.append(
            {"prompt": f"Read {a} + {b} or other pairs of integers from a line and print the sum.", "tests": tests}
        )
    for name, rows in (("math", math), ("code", code)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def configuration(place: Path, options: argparse.Namespace) -> str:
    """Return the run's TOML."""
    longest = CONTEXT - PROMPT - 100  # without the phrase and the answer
    tasks = "".join(
        f'[[data]]\nkind = "file"\npath = "{place / name}.jsonl"\ntask = "{name}"\nmax_prompt_tokens = {PROMPT}\n'
        for name in ("math", "code")
    )
    return f"""
steps = {options.steps}
[model]
kind = "hf"
path = "{place / "model"}"
{tasks}
[recipe]
prompts_per_step = {options.prompts}
generations_per_prompt = {options.generations}
zero_variance = "keep"
truncated = "keep"
[rollouts]
slots = {options.prompts * options.generations}
expected_tokens = {longest}
[recipe.length]
kind = "interruption"
thinking_tokens = [{longest * 7 // 8}, {longest}]
answer_tokens = 40
phrase = {json.dumps(PHRASE)}
end_tag = "Answer:"
[evaluation]
every = 1000000
prompts = 2
samples = 1
[checkpoint]
every = 1000000
"""


def split(row: dict[str, Any]) -> dict[str, float]:
    """Return the times of the parts of a step."""
    return {
        "step, s": row["step_s"],
        "trainer waits for the batch, share": row["trainer_idle"],
        "scores waited for, s": row["scoring_wait_s"],
        "generator idle, share": row["generator_idle"],
        "generator, tokens/s": row["generator_tokens_per_s"],
        "trainer, tokens/s": row["trainer_tokens_per_s"],
        "mean completion, tokens": row["completion_tokens_mean"],
        "pass rate": row["pass_rate"],
    }


if __name__ == "__main__":
    main()
