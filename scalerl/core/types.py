"""The records that components exchange: prompts, rollouts, groups, scores and evaluation points, each with an example.

Arrays are numpy arrays with one entry per generated token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
ExpertArray = npt.NDArray[np.uint8] | npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt.

    Example:
        Prompt(id="9f2c41d07be3a815", text="7+4*3=<think>", tokens=(7, 11, 4, 13, 3, 16, 25), answer="3",
               task="arithmetic", columns={})
    """

    id: str
    """First 16 hex digits of a hash of the prompt's content; it does not depend on run, file order or process."""
    text: str
    """The text whose tokens the model continues (chat template applied)."""
    tokens: tuple[int, ...]
    """`text` in the policy's vocabulary."""
    answer: str
    """Reference answer, for the verifier."""
    task: str
    """Name of its task, which selects the verifier and names the curve."""
    columns: dict[str, Any] = field(default_factory=dict)
    """The row's columns, for verifiers and reward functions; `prompt` is the prompt of the row."""
    where: str = field(default="", compare=False)
    """File and line from which it was read, for messages only."""
    content: str = field(default="", compare=False)
    """Hash of what the prompt asks, without notation; prompts with the same one are all held out or all trained on."""
    question: str = field(default="", compare=False)
    """The beginning of the user's last message, for lists of rollouts."""

    @property
    def reference(self) -> tuple[str, str]:
        """Task and id, which no two prompts of a run share; checkpoints have it in place of the prompt."""
        return self.task, self.id


TURNS = "limits of turns"
"""Column of a prompt with an environment, for its limits (training/config/data.py); files may have a column `turns`."""

AGENT = "settings of an agent"
"""Column of a prompt whose rollouts are made by a program over the endpoint (training/config/data.py)."""

PROGRAMS = "runs programs"
"""Column of such a prompt: whether a tool runs programs of the policy, which needs a sandbox."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One draw of a prompt by the curriculum; its samples' random streams are keyed by (seed, prompt, number).

    Example:
        Visit(prompt=Prompt(...), number=2, index=4711)
    """

    prompt: Prompt
    number: int
    """How many times this prompt had been drawn before."""
    index: int
    """Position in the order of all draws of the run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the environment of a rollout ended it (docs/environments.md).

    Example:
        Outcome(turns=3, ended="environment", score=1.0, problem="", metrics={"guesses": 2.0}, observed=31,
                rewards=(0.0, 0.25, 1.0))
    """

    turns: int
    """Turns of the policy."""
    ended: str
    """What ended it: environment, tokens (of a turn), turns (their limit), or problem."""
    score: float
    """Score from 0 to 1, or reward of a rubric; 0 unless the environment ended it."""
    problem: str
    """Reason for which the environment gave no reply; such a rollout has no score."""
    metrics: dict[str, float]
    """The environment's own numbers."""
    calls: int = 0
    """Results of tools."""
    observed: int = 0
    """Tokens of replies."""
    longest: int = 0
    """Tokens sampled in the longest turn; the limit of `recipe.length` applies to each turn."""
    waited_s: float = field(default=0.0, compare=False)
    """Seconds between requests for replies and their use."""
    rewards: tuple[float, ...] = ()
    """Reward of each turn, in the unit of `score`; empty: the last turn has the score, the others 0."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion of T tokens, without the prompt, with each token's log-probability when it was sampled.

    Example (interrupted after two tokens of thinking; the model then wrote the answer):
        Rollout(tokens=[7, 11, 26, 3, 24], logps=[-0.1, -0.7, 0.0, -0.2, -0.1], versions=[4, 4, 5, 5, 5],
                sampled=[True, True, False, True, True], truncated=False, interrupted=True)
    """

    tokens: IntArray
    """[T] token ids, including the stop token."""
    logps: FloatArray
    """[T] log-probability under the policy that sampled the token (tempered, within the nucleus); 0 where not
    sampled."""
    versions: IntArray
    """[T] version of the weights that produced the token: the number of updates applied to them."""
    sampled: BoolArray
    """[T] False for injected tokens, which are context and never enter the loss."""
    truncated: bool
    """Whether it, or a turn of it, ended at a limit of length or turns, without a stop token."""
    interrupted: bool
    """Whether its thinking, or that of a turn, was ended by the inserted phrase."""
    outcome: Outcome | None = None
    """End of a rollout with an environment, whose replies are among the tokens that were not sampled."""
    experts: ExpertArray | None = None
    """[T, L, K] the K experts that each of the L layers used for the preceding token, whose hidden state gave this
    token's distribution. None for dense models and for engines that do not record experts."""
    nucleus: tuple[IntArray, IntArray] | None = None
    """Under top-p: [T] number of tokens that each was sampled from, and the ids of all of these, one set after the
    other; the set of an injected token is empty. None: sampled from the whole vocabulary."""

    prompt: tuple[int, ...] | None = None
    """Tokens before it, if they are not those of its group's prompt."""
    others: tuple[Rollout, ...] = ()
    """Further sequences of the same rollout, such as conversations of sub-agents; all have its reward."""
    turns: tuple[tuple[int, int], ...] = ()
    """Number of each of its turns among all turns of the rollout, and the tokens up to its end; empty: one turn."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sequences(self) -> tuple[Rollout, ...]:
        """All sequences of the rollout, this one first."""
        return (self, *self.others)

    @property
    def incomplete(self) -> bool:
        """Whether it counts as wrong: it is truncated, and no environment has given its score since."""
        return self.truncated and self.ended != "environment"

    @property
    def ended(self) -> str:
        """What ended it: stop (a token), or a word of `Outcome.ended`."""
        return self.outcome.ended if self.outcome else "tokens" if self.truncated else "stop"

    def after(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens before it, given the prompt of its group."""
        return prompt.tokens if self.prompt is None else self.prompt

    def without_tokens(self) -> Rollout:
        """Return the rollout with its length and its end only: every token is -1, and takes no memory."""
        others = tuple(other.without_tokens() for other in self.others)
        return replace(self, **_blank(len(self)), experts=None, nucleus=None, others=others)


@lru_cache(4096)
def _blank(length: int) -> dict[str, Any]:
    values = {"tokens": np.int32(-1), "logps": np.float32(0.0), "versions": np.int32(-1), "sampled": np.False_}
    return {name: np.broadcast_to(value, length) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Group:
    """All G rollouts of one visit.

    Example:
        Group(visit=Visit(...), rollouts=(Rollout(...), Rollout(...)), oldest_version=4)
    """

    visit: Visit
    rollouts: tuple[Rollout, ...]
    oldest_version: int
    """Version of the oldest weights that sampled any of its tokens."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one completion.

    Example: Score(reward=1.0, passed=True)
    """

    reward: float
    """Reward, from which the advantages are computed."""
    passed: bool
    """Whether the completion passed, for the pass rate, the curriculum and the curve."""
    reason: str = field(default="", compare=False)
    """Reason in one line, for display only."""
    in_prompt: bool = field(default=False, compare=False)
    """Whether the completion passed with an answer that stands in its prompt, for a metric only."""
    form: str = field(default="", compare=False)
    """Form in which the answer was found (training/rewards/answers.py), for a metric only; empty: the task has none."""
    text_only: bool = field(default=False, compare=False)
    """Whether the answer could only be compared as text, for a metric only."""
    counted: bool = True
    """False if the reward function, verifier or environment failed. Such a completion has no reward, and enters neither
    loss, baseline, normalization nor pass rates."""
    of_turns: tuple[float, ...] = ()
    """Reward of each turn of a rollout with an environment, in the unit of `reward`, for `recipe.turn_credit`; empty:
    one turn, with `reward`."""

    @classmethod
    def missing(cls, problem: str) -> Score:
        """Return the score of a completion without a reward."""
        return cls(0.0, False, problem, counted=False)


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with the score of each of its rollouts.

    Example: ScoredGroup(group=Group(...), scores=(Score(1.0, True), Score(-1.0, False)))
    """

    group: Group
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class GeneratorStats:
    """The generator's totals when it completed a batch, since the start of the run and across resumes.

    Example:
        GeneratorStats(tick=8113, tokens=289113, flops=9.1e10, slot_steps=519232, busy_s=31.2, idle_s=0.4,
                       swap_s=0.003)
    """

    tick: int
    """Decode steps."""
    tokens: int
    """Tokens sampled, including those of sequences in flight."""
    flops: float
    """Floating-point operations of prefill and decoding."""
    slot_steps: int = 0
    """Slots x decode steps, summed over engines; `tokens` / `slot_steps` is the occupancy."""
    busy_s: float = 0.0
    """Seconds spent generating (evaluation excluded)."""
    idle_s: float = 0.0
    """Seconds spent waiting for weights or prompts."""
    swap_s: float = 0.0
    """Duration of the last weight swap, seconds."""
    restarts: int = 0
    """Number of engines that died and were restarted."""
    resampled: int = 0
    """Sequences that were sampled again after a restart."""
    parked_s: float = 0.0
    """Seconds that sequences waited for a reply, summed over the sequences."""


FLOPS_RULE = 1
"""Version of the rule that counts FLOPs (docs/metrics.md); raise it when the counts of the same run change."""


@dataclass(frozen=True, slots=True)
class EvalPoint:
    """One point of a run's curve: a row of points.jsonl.

    Example:
        EvalPoint(step=100, device_hours=0.021, flops=3.1e14, tokens=4200000, task="arithmetic", pass_rate=0.412,
                  stderr=0.006, prompts=1000, samples_per_prompt=16)
    """

    step: int
    """Number of updates applied to the evaluated weights."""
    device_hours: float
    """Devices x hours of training, excluding evaluation and checkpoints."""
    flops: float
    """Floating-point operations of training and generation so far."""
    tokens: int
    """Tokens generated for training so far."""
    task: str
    """Name of the held-out set."""
    pass_rate: float
    """mean@k: the mean over prompts of the share of k samples that pass. Samples without a reward are not counted."""
    stderr: float
    """Standard error of `pass_rate` over prompts; NaN for one prompt."""
    prompts: int
    """Number of held-out prompts."""
    samples_per_prompt: int
    """k."""
    truncated: float = 0.0
    """Share of samples that reached their length limit."""
    failed: float = 0.0
    """Share of samples without a reward."""
    mean_tokens: float = 0.0
    """Mean length of the samples, tokens."""
    eval_s: float = 0.0
    """Wall-clock seconds of the whole evaluation, all tasks together; not part of device_hours."""
    flops_rule: int = FLOPS_RULE
    """Version of the rule that counted `flops`; runs are compared only under one rule."""
    turns: float | None = None
    """Environments: mean number of turns of the policy in a sample."""
    tool_calls: float | None = None
    """Environments: mean number of results of tools."""
    reply_wait_s: float | None = None
    """Environments: mean seconds that a sample waited for replies."""
    eval_devices: int | None = None
    """With `evaluation.overlap`: GPUs, or 1 on CPU, that were busy for `eval_s`, next to those of training."""
    eval_flops: float | None = None
    """With `evaluation.overlap`: floating-point operations of the evaluation, which are not part of `flops`."""
    eval_wait_s: float | None = None
    """With `evaluation.overlap`: seconds that the loop spent on the evaluation, or waited for it."""
    replay_difference: float | None = None
    """With `evaluation.overlap`: largest difference of replayed log-probabilities, nats."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values, without columns that have no value in this run."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> EvalPoint | None:
        """Return the point of a row, with NaN for an unknown pass rate or standard error; None for any other row."""
        values = {name: row[name] for name in _POINT if name in row}
        values |= {name: math.nan for name in ("pass_rate", "stderr") if values.get(name) is None}
        if not all(isinstance(value, _POINT[name]) for name, value in values.items()):
            return None
        try:
            return cls(**values)
        except TypeError:  # a column is missing
            return None


_POINT = {field.name: (str,) if field.name == "task" else (int, float) for field in fields(EvalPoint)}
