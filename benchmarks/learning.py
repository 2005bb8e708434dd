"""The task of trainers.py --learning: the lab's model, prompts, reward and evaluation, for any trainer.

Imports no trainer, so that the script of another one can use it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scalerl.training.config import QUICK, HuggingFaceModel, RunConfig
from scalerl.training.config.base import replace

LEVELS = (0.6, 0.75)
"""Pass rates to which rollouts, CPU time and time are compared."""


def reward(text: str, answer: str) -> float:
    """Return 1.0 if the text after the thinking is the answer."""
    return float(text.partition("</think>")[2].strip() == answer and "</think>" in text)


def reached(rows: Sequence[Mapping[str, Any]], level: float, value: str = "step") -> float | None:
    """Return a column's value where the mean of two successive evaluations first reaches a level; None: nowhere.

    The value lies between those of the evaluations before, by linear interpolation of the means.
    """
    means = [(one["pass_rate"] + two["pass_rate"]) / 2 for one, two in itertools.pairwise(rows)]
    values = [(one[value] + two[value]) / 2 for one, two in itertools.pairwise(rows)]
    for i, mean in enumerate(means):
        if mean >= level:
            share = (level - means[i - 1]) / (mean - means[i - 1]) if i else 1.0
            return values[i - 1] + share * (values[i] - values[i - 1]) if i else values[0]
    return None


def start(report: Any = None) -> Path:
    """Return the directory of the lab's warm-started model; the first call makes it (2 minutes)."""
    from scalerl.training.loop.warm_start import warm_start, warm_start_directory

    directory = warm_start_directory(QUICK.model, QUICK.data)
    return warm_start(QUICK.model, QUICK.data, directory, report or (lambda row: None))


def config_of(model: Path) -> RunConfig:
    """Return the configuration of an evaluation on this machine."""
    from scalerl.training.loop.resolve import resolve_hardware

    return replace(QUICK, model=HuggingFaceModel(path=str(model)), hardware=resolve_hardware(QUICK.hardware))


def save_prompts(model: Path, to: Path) -> None:
    """Write the lab's training prompts with their reference answers."""
    from scalerl.training.models.loading import load_tokenizer
    from scalerl.training.prompts.dataset import load_prompts

    config, tokenizer = config_of(model), load_tokenizer(str(model), "main")
    prompts = load_prompts(config, tokenizer).training
    to.write_text("".join(json.dumps({"prompt": p.text, "answer": p.answer}) + "\n" for p in prompts))


class Evaluation:
    """Evaluates weights on the lab's held-out prompts, as a run of `scalerl` does."""

    def __init__(self, model: Path, scratch: Path) -> None:
        """Load the tokenizer and a policy whose weights are replaced at each evaluation."""
        from scalerl.training.loop.suites import SuiteEvaluator

        self.config, self._scratch = config_of(model), scratch
        threads = torch.get_num_threads()
        self._evaluator = SuiteEvaluator(self.config, scratch, lambda note: None)
        torch.set_num_threads(threads)  # the other trainer's own number
        (self._prompts,) = self._evaluator.held_out_of_run(None)

    def pass_rate(self, model: Any) -> float:
        """Return the mean pass rate of a transformers model with the same architecture."""
        self._evaluator._policy.load_weights(0, dict(model.named_parameters()))
        task = self.config.data[0]
        samples = self.config.evaluation.samples_of(task)
        return self._evaluator.evaluate(task, self._prompts, samples, self._scratch / "x.jsonl").mean
