"""Evaluates a model on suites, with the torch engine or vLLM servers: mean@k and pass@k.

Axes: P prompts, K samples per prompt.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import comb
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from scalerl.core.errors import ConfigError
from scalerl.core.files import atomic_file
from scalerl.core.types import BoolArray, Prompt, ScoredGroup
from scalerl.reading.curves.estimate import as_json, percent, with_error
from scalerl.training.config import HuggingFaceModel, RunConfig
from scalerl.training.config.base import chosen
from scalerl.training.config.data import TaskData
from scalerl.training.engines.build import EngineSpec, episodes, has_agents
from scalerl.training.engines.engine import Engine, Sampling
from scalerl.training.engines.interrupt import length_rule
from scalerl.training.engines.local.torch_engine import check_cached_logps, torch_engine
from scalerl.training.engines.turns import check_replies, with_replies
from scalerl.training.loop.evaluation import Add, Verdicts, evaluate, mean_at_k, sample
from scalerl.training.loop.evaluator import held_out_visits
from scalerl.training.loop.rollout_rows import rollout_row
from scalerl.training.loop.run_model import check_length, generator_spec
from scalerl.training.machines.memory import gb, pass_memory
from scalerl.training.machines.sizing import cache_rows, memory_here
from scalerl.training.models.loading import load_tokenizer
from scalerl.training.models.policy import check_vocabulary, stop_tokens
from scalerl.training.models.sizes import SizedModel
from scalerl.training.models.text import TokenText
from scalerl.training.placement.choices import policy_spec
from scalerl.training.placement.devices import served_places
from scalerl.training.placement.sizes import RunSizes
from scalerl.training.prompts.dataset import load_prompts, task_prompts
from scalerl.training.rewards.scoring import ScoringService, make_scorers

MOST_SLOTS = 256
"""Sequences that are decoded together unless `--slots` says otherwise."""

SERVED_SLOTS = 256
"""Sequences that a vLLM server decodes together."""

TRAINING_COLUMNS = ("step", "versions", "staleness", "log_ratio_min", "log_ratio_max", "token_detail")
"""Columns of a training run's rollouts that have no meaning in an evaluation."""


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """Result of a model on one suite.

    Example:
        SuiteResult(suite="aime-24", prompts=30, samples=16, mean=0.267, stderr=0.041, pass_at={1: 0.267, 16: 0.533},
                    truncated=0.12, failed=0.0, mean_tokens=834.0, tokens_per_s=1834.0, seconds=218.0,
                    texts="evaluations/model-001/aime-24.jsonl")
    """

    suite: str
    prompts: int
    samples: int
    """k, the number of samples per prompt."""
    mean: float
    """mean@k: mean over prompts of the share of samples that pass. Samples without a reward are not counted."""
    stderr: float
    """Standard error of `mean` over prompts; NaN for one prompt."""
    pass_at: dict[int, float]
    """Unbiased pass@k for k = 1, 2, 4, ... and all samples of a prompt."""
    truncated: float
    """Share of samples that reached the length limit."""
    failed: float
    """Share of samples without a reward, because the reward function, verifier or environment failed."""
    mean_tokens: float
    tokens_per_s: float
    """Sampled tokens per second of sampling."""
    seconds: float
    """Duration of sampling and scoring."""
    texts: str
    """JSONL file with every sample."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""
        values = {name: as_json(value) for name, value in asdict(self).items()}
        return {**values, "pass_at": {str(k): value for k, value in self.pass_at.items()}}

    def lines(self) -> list[str]:
        """Return the result as lines of text."""
        passes = "  ".join(f"pass@{k} {value:.3f}" for k, value in self.pass_at.items())
        return [
            f"{self.suite}: {self.prompts} prompts x {self.samples} samples",
            f"  mean@{self.samples:<5} {with_error(self.mean, self.stderr)}",
            f"  unbiased   {passes}",
            f"  truncated  {percent(self.truncated)}, mean length {self.mean_tokens:.0f} tokens",
            *([f"  no reward  {percent(self.failed)} of the samples, which are not counted"] if self.failed else []),
            f"  took       {self.seconds:.0f} s, {self.tokens_per_s:,.0f} tokens/s",
            f"  texts      {self.texts}",
        ]


class SuiteEvaluator:
    """Evaluates a loaded model on suites."""

    def __init__(
        self,
        config: RunConfig,
        where: Path,
        note: Callable[[str], None],
        on: Callable[[str, int, int], None] = lambda what, done, total: None,
    ) -> None:
        """Load the model.

        Args:
            config: Resolved configuration with model, recipe (sampling, length limits), scoring, engine and seed.
            where: Directory for the logs of vLLM servers.
            note: Function called with notes about prompts that were left out.
            on: Function called with what is done, and how much of it: what, done, total.

        Raises:
            ConfigError: The model does not exist, or the engine does not support it.
        """
        assert isinstance(config.model, HuggingFaceModel), config.model
        torch.set_num_threads(chosen(config.hardware.generator_threads) + chosen(config.hardware.trainer_threads))
        self.config, self._where, self._note, self._on = config, where, note, on
        self._longest, self._servers = 0, list[Engine]()
        model, served = config.model, config.placement.engine == "vllm"
        self._model = policy_spec(config, model.path)
        self._policy = self._model.load("cpu" if served else config.hardware.device)
        self.tokenizer = load_tokenizer(model.path, model.revision)
        check_vocabulary(self.tokenizer, self._policy, model.path)
        self._stop = stop_tokens(self._policy, self.tokenizer)
        self._text = TokenText(self.tokenizer, self._stop)
        if not served:
            check_cached_logps(self._policy)
        self._rule = length_rule(config.recipe.length, partial(self.tokenizer.encode, add_special_tokens=False))

    def prompts_of(self, task: TaskData, most: int | None) -> list[Prompt]:
        """Return all prompts of a suite, or the first `most` by the hash of their content."""
        prompts, notes = task_prompts(task, self.tokenizer, 0, self.config.scoring, self._stop)
        return self._first(prompts, notes, most)

    def held_out_of_run(self, most: int | None) -> list[list[Prompt]]:
        """Return the held-out prompts of each task of the configured run."""
        config = self.config
        split = load_prompts(config, self.tokenizer, self._stop)
        return [self._first([p for p in split.held_out if p.task == task], split.notes, most) for task in config.tasks]

    def _first(self, prompts: list[Prompt], notes: Sequence[str], most: int | None) -> list[Prompt]:
        for note in notes:
            self._note(note)
        chosen = sorted(prompts, key=lambda prompt: prompt.id)[:most]
        self._longest = max(self._longest, with_replies(chosen, self._rule.capacity)[0])
        check_replies(chosen, self.tokenizer, self.config.scoring)
        return chosen

    def evaluate(self, task: TaskData, prompts: Sequence[Prompt], samples: int, texts: Path) -> SuiteResult:
        """Sample and score completions, write them to a file, and return the metrics; all prompts are loaded before.

        Args:
            task: Task with the verifier or reward function.
            prompts: Prompts of the suite.
            samples: k, the number of samples per prompt.
            texts: JSONL file to write.

        Raises:
            ConfigError: A prompt is too long for the model.
            RewardError: A reward function failed.
            EngineDied: A vLLM server died too often.
        """
        if not prompts:
            raise ConfigError(f"{task.curve}: no prompt is left to evaluate on; increase data.max_prompt_tokens")
        longest, replies = with_replies(prompts, self._rule.capacity)
        check_length(self._policy, self._rule, longest)
        made = self._engines(longest, samples * len(prompts))
        wrap = episodes(self._text, self.config.scoring, replies, has_agents(prompts), len(made))
        scoring = ScoringService(make_scorers([task], self.config.scoring), self._text.judged)
        engines, visits = list(map(wrap, made)), held_out_visits(prompts)
        began, total = time.perf_counter(), samples * len(prompts)
        sampled_s, sampled, scored = 0.0, 0, 0

        def show_sampled(count: int) -> None:
            nonlocal sampled_s, sampled
            sampled_s, sampled = time.perf_counter() - began, count
            self._on(f"{task.curve}: sampling", count, total)

        def source(add: Add) -> float:
            def add_shown(index: int, group: ScoredGroup) -> None:
                nonlocal scored
                add(index, group)
                scored += 1
                if sampled == total:
                    self._on(f"{task.curve}: scoring", scored, len(prompts))

            return sample(engines, visits, samples, self.config.seed, scoring, add_shown, show_sampled)

        texts.parent.mkdir(parents=True, exist_ok=True)
        with closing(scoring), atomic_file(texts) as temporary, temporary.open("w", encoding="utf-8") as file:
            tally = Texts(len(prompts), samples, file, self._text)
            seconds, _ = evaluate(source, tally)
        mean, stderr = mean_at_k(tally.passed_PK, tally.counted_PK)
        return SuiteResult(
            suite=task.curve,
            prompts=len(prompts),
            samples=samples,
            mean=mean,
            stderr=stderr,
            pass_at=pass_at_powers(tally.passed_PK, tally.counted_PK),
            **tally.shares(),
            tokens_per_s=tally.tokens / max(1e-9, sampled_s),
            seconds=seconds,
            texts=str(texts),
        )

    def _engines(self, longest: int, sequences: int) -> list[Engine]:
        """Return a torch engine for this suite, or vLLM servers, which serve all suites and end with this process."""
        recipe, stop = self.config.recipe, self._stop
        if self.config.placement.engine != "vllm":
            sampling, slots = Sampling(recipe.temperature, recipe.top_p, stop), self._slots(longest, sequences)
            return [torch_engine(self._policy, slots=slots, prompt_tokens=longest, rule=self._rule, sampling=sampling)]
        if not self._servers:
            from scalerl.training.engines.kept_weights import KeptWeights
            from scalerl.training.engines.vllm.launch import server_engines

            config, place = self.config, self.config.placement
            count, model = place.engines, SizedModel(self._policy.sizes, self._model.path)
            sizes = RunSizes.of(config, model, longest_prompt=self._longest, completion=self._rule.capacity)
            if "slots" in sizes.open:
                sizes = replace(sizes, slots=SERVED_SLOTS * count)
            parts = {"make_engines": server_engines, "devices": served_places(place, config.hardware.device)}
            spec = generator_spec(
                sizes, config.scoring, self._model, self._policy, self._rule, stop, self._where, **parts
            )
            pairs = server_engines([EngineSpec(spec, KeptWeights(), number) for number in range(count)], self._note)
            self._servers = [pair.training for pair in pairs]
            for engine in self._servers:
                engine.swap(0)
        return self._servers

    def _slots(self, longest: int, sequences: int) -> int:
        """Return the number of sequences decoded together: as configured, or as many as fit in memory."""
        row = self._policy.cache_bytes * (longest + self._rule.capacity)
        working = pass_memory(self._policy.sizes, longest, self._policy.head_weight.element_size())
        slots, gpu = self.config.rollouts.slots, memory_here(self.config.hardware, self.config.placement).gpu
        fit = cache_rows(row, working, gpu, given=slots != "auto")
        least = 1 if slots == "auto" else slots
        if fit < least:
            raise ConfigError(
                f"memory: {least} sequences of {longest + self._rule.capacity:,} tokens need "
                f"{gb(least * row + working)} GB in addition to the model, and there is room for {fit}; lower "
                f"{'' if slots == 'auto' else '--slots or '}--max-tokens"
            )
        return min(min(fit, MOST_SLOTS) if slots == "auto" else slots, sequences)


class Texts(Verdicts):
    """Tally of a suite: verdicts in memory, and every rollout as a row of a file, in the order of the prompts.

    Rows wait in memory for those of earlier prompts. Engines start sequences in this order, so that few others can end
    before the longest one does.
    """

    def __init__(self, prompts: int, samples: int, file: IO[str], text: TokenText) -> None:
        """Start without results.

        Args:
            prompts: P.
            samples: K.
            file: File that gets the rows.
            text: Decoder of tokens.
        """
        super().__init__(prompts, samples)
        self._file, self._text = file, text
        self._waiting, self._written = dict[int, list[str]](), 0

    def add(self, index: int, scored: ScoredGroup) -> None:
        """Add the scored group of a prompt."""
        super().add(index, scored)
        rows = [rollout_row(self._text, 0, scored, sample) for sample in range(len(scored.scores))]
        self._waiting[index] = [json.dumps({k: v for k, v in row.items() if k not in TRAINING_COLUMNS}) for row in rows]
        while (lines := self._waiting.pop(self._written, None)) is not None:
            self._file.writelines(line + "\n" for line in lines)
            self._written += 1


def pass_at_k(passed_PK: BoolArray, counted_PK: BoolArray, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of k samples passes, averaged over prompts.

    A prompt with c passes of n samples has 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, eq. 1).

    Args:
        passed_PK: Whether each sample passed.
        counted_PK: Whether each sample has a reward; n counts these. Prompts with n < k do not enter the average.
        k: Number of samples; at least one prompt has as many.
    """
    pairs = list(zip(passed_PK.sum(axis=1).tolist(), counted_PK.sum(axis=1).tolist(), strict=True))
    # once for each pair of counts, because there are many prompts and few counts
    values = {(c, n): 1.0 - comb(n - c, k) / comb(n, k) for c, n in set(pairs) if n >= k}
    return float(np.mean([values[pair] for pair in pairs if pair in values]))


def pass_at_powers(passed_PK: BoolArray, counted_PK: BoolArray) -> dict[int, float]:
    """Return pass@k for k = 1, 2, 4, ... and the largest number of samples with a reward of a prompt."""
    most = int(counted_PK.sum(axis=1).max())
    ks = sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most} - {0})
    return {k: pass_at_k(passed_PK, counted_PK, k) for k in ks}
