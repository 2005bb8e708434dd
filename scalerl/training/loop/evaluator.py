"""What the evaluations of a run measure, and the trainer's side of a process that evaluates while training goes on.

The process itself is in evaluation_process.py. It evaluates one snapshot of the weights at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scalerl.core.errors import outcome
from scalerl.core.processes import ProcessDied
from scalerl.core.remote import Remote, Supervisor
from scalerl.core.types import EvalPoint, Prompt, Visit
from scalerl.training.config.data import TaskData
from scalerl.training.config.run import Evaluation
from scalerl.training.engines.pipeline import SendWeights
from scalerl.training.engines.weights import WeightChannel
from scalerl.training.learner.checkpoint import load_state, save_state
from scalerl.training.loop.rollout_rows import Pair, RolloutRow, kept_samples

EVALUATED_WEIGHTS = "evaluated_weights"
"""Part of a checkpoint: the weights that are evaluated, if they are older than those of the checkpoint."""


class EvaluatorDied(ProcessDied):
    """The evaluation process failed, or ended several times; the message includes its name."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What every evaluation of a run samples, and which of its rollouts are replayed and saved.

    Example: HeldOut(visits=(Visit(...), ...), samples=(16, 16, ...), replayed=(0, 25), kept={(0, 0), ...}, saved=16)
    """

    visits: tuple[Visit, ...]
    """Their `number` is always 0, so that their random streams never change."""
    samples: tuple[int, ...]
    """Rollouts of each visit."""
    replayed: tuple[int, ...]
    """Indices of the groups whose first rollout is replayed."""
    kept: frozenset[Pair]
    """(index of the group, sample) of the rollouts whose tokens are kept."""
    saved: int
    """Rows of rollouts.jsonl for each task."""

    @classmethod
    def of(cls, settings: Evaluation, tasks: Sequence[TaskData], prompts: Sequence[Prompt]) -> HeldOut:
        """Return what is evaluated on the held-out prompts of some tasks."""
        visits, of_task = held_out_visits(prompts), {task.curve: settings.samples_of(task) for task in tasks}
        samples = tuple(of_task[visit.prompt.task] for visit in visits)
        wanted, count = settings.replayed, len(visits)
        replayed = tuple(range(count)[:: max(1, count // wanted)][:wanted]) if wanted else ()
        kept = frozenset(kept_samples(visits, samples, replayed, settings.saved))
        return cls(visits, samples, replayed, kept, settings.saved)


def held_out_visits(prompts: Sequence[Prompt]) -> tuple[Visit, ...]:
    """Return the visits of an evaluation; their `number` is always 0, so their random streams never change."""
    return tuple(Visit(prompt, number=0, index=i) for i, prompt in enumerate(prompts))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights to evaluate, and the compute of training up to them.

    Example: Snapshot(step=100, device_hours=0.021, flops=3.1e14, tokens=4200000)
    """

    step: int
    """Number of updates applied to them, which is their version."""
    device_hours: float
    flops: float
    """Floating-point operations of training and generation."""
    tokens: int
    """Tokens generated for training."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Result of an evaluation.

    Example: Evaluated(points=[EvalPoint(...)], rows=[{"step": 100, ...}], notes=())
    """

    points: list[EvalPoint]
    """One for each task."""
    rows: list[RolloutRow]
    """Rows of rollouts.jsonl."""
    notes: tuple[str, ...] = ()
    """Lines for the user, such as rewards that failed."""


class Evaluator:
    """The trainer's side of the evaluation process.

    The weights under way stay in the channel, so that a process that was killed is replaced and evaluates them again,
    and a checkpoint can have them. Equal weights give equal results, whenever and how often they are evaluated.
    """

    def __init__(self, launch: Callable[[], Remote], channel: WeightChannel, note: Callable[[str], None]) -> None:
        """Prepare; `start` starts the process.

        Args:
            launch: Function that starts the process; on Ray it waits until the actor has its devices.
            channel: Channel that carries the weights to it.
            note: Function that gets lines for the user.
        """
        self.channel, self._process = channel, Supervisor(launch, note)
        self._sent: int | None = None
        self._writing = self._result = outcome(lambda: None)
        self.under_way: Snapshot | None = None
        """The snapshot that is evaluated; None: nothing is."""
        self.spent_s = 0.0
        """Seconds that the loop spent on this evaluation, and on showing the result of the one before."""

    def start(self) -> None:
        """Start the process, and do not wait until it has loaded the model."""
        self._process.start()

    def begin(self, snapshot: Snapshot, send: SendWeights) -> None:
        """Send weights to the process and let it evaluate them; `result` has returned the last result before.

        Args:
            snapshot: Weights and compute.
            send: Function that sends these weights.
        """
        assert self.under_way is None, self.under_way
        self._writing.exception()  # a checkpoint may still read the weights before them
        if self._sent is not None:
            self.channel.drop(self._sent)
        send(snapshot.step, self.channel)
        self._sent, self.under_way, self._result = snapshot.step, snapshot, Future()
        evaluate = partial(self._process.call, "evaluate", snapshot, during=f"the evaluation of step {snapshot.step}")
        threading.Thread(target=outcome, args=(evaluate, self._result), name="evaluation", daemon=True).start()

    def result(self, wait_s: float = 0.0) -> Evaluated | None:
        """Return the result of the evaluation under way, which then no longer is; None if it has not arrived.

        Args:
            wait_s: Seconds to wait for it.

        Raises:
            EvaluatorDied: The process failed, or ended too often.
            RewardError, ReplayMismatch, NotFinite, ConfigError: From the process; the snapshot stays under way.
        """
        assert self.under_way is not None
        if not wait([self._result], wait_s).done:
            return None
        evaluated = self._result.result()
        self.under_way = None
        return evaluated

    def save_with(self, saving: Future[None], directory: Path) -> Future[None]:
        """Write the weights under way to a checkpoint, in a thread.

        Args:
            saving: The learner's part of the checkpoint.
            directory: Directory of the checkpoint.

        Returns:
            A future that is done when both are written; it has the error of either.
        """
        assert self.under_way is not None
        weights = self.channel.receive(self.under_way.step)

        def write() -> None:
            save_state(directory, EVALUATED_WEIGHTS, dict(weights))
            saving.result()

        self._writing = Future()
        threading.Thread(target=outcome, args=(write, self._writing), name="evaluated weights", daemon=True).start()
        return self._writing

    def close(self) -> None:
        """End the process; nothing of it is lost, because a resume evaluates the weights under way again."""
        self._writing.exception()
        self._process.close()
        self._result.exception()
        self._process.end()


def saved_weights(checkpoint: Path) -> SendWeights:
    """Return a function that sends the weights which `save_with` wrote."""
    weights: Mapping[str, Any] = load_state(checkpoint, EVALUATED_WEIGHTS)
    return lambda version, channel: channel.send(version, weights.items())
