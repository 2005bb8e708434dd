"""TRL's GRPOTrainer on a tiny random model with a reward for digits. Needs trl; does not use scalerl."""

from __future__ import annotations

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

LETTERS = "0123456789+=abcdefghij "


def digits(completions, **columns):
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in completions]


def short(completions, **columns):
    return [-len(text) / 6 for text in completions]


def prompts(count):
    return Dataset.from_dict({"prompt": [f"{i % 10}+{i // 10}=" for i in range(count)]})


def grpo(directory, steps, rewards=(digits,), evaluation=None, callbacks=(), **settings):
    """Return a trainer that evaluates every second step; ``settings`` go to GRPOConfig."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    vocabulary = {"<pad>": 0, "<eos>": 1, **{letter: i + 2 for i, letter in enumerate(LETTERS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    config = Qwen3Config(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=64, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    defaults = {
        "per_device_train_batch_size": 4, "per_device_eval_batch_size": 16, "num_generations": 4,
        "max_completion_length": 6, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 2,
        "save_strategy": "steps", "save_steps": 4, "report_to": "none", "use_cpu": True, "learning_rate": 5e-2,
        "disable_tqdm": True,
    }  # fmt: skip
    return GRPOTrainer(
        model=Qwen3ForCausalLM(config),
        reward_funcs=list(rewards),
        args=GRPOConfig(output_dir=str(directory), max_steps=steps, **{**defaults, **settings}),
        train_dataset=prompts(16),
        eval_dataset=prompts(16) if evaluation is None else evaluation,
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"),
        callbacks=list(callbacks),
    )
