"""Verifiers and reward functions in Ray actors, so that scoring is not limited to the trainer's node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from typing import Any, NamedTuple

from scalerl.core.errors import ConfigError
from scalerl.core.limits import ACTOR_PLACED_S, MOST_DEATHS
from scalerl.core.types import Prompt, Score
from scalerl.training.config.base import replace
from scalerl.training.config.data import TaskData
from scalerl.training.config.run import Scoring
from scalerl.training.machines.connect import last_line
from scalerl.training.rewards.scoring import Pending, Scorer, make_scorer, make_scorers
from scalerl.training.rewards.user_rewards import Failures, RewardError

GROUPS_AT_ONCE = 64
"""Groups that are sent to one actor at a time; its process pool limits how many are scored in parallel."""

RESTARTS = 100
"""Deaths of one actor in a run, after which Ray gives it up; one that ends whenever it starts would never be ready."""


class ScorerActor:
    """The scorers of all tasks of a run, in a Ray process with a separate process pool."""

    def __init__(self, tasks: Sequence[TaskData], settings: Scoring) -> None:
        self._scorers = {task.curve: make_scorer(task, settings) for task in tasks}

    def ready(self) -> None:
        """Return when the actor has started."""

    def judge(self, task: str, prompt: Prompt, completions: Sequence[str]) -> ScoredCompletions:
        """Return the scores of one prompt's completions; an actor has several such calls at a time, in threads.

        Consumes: one group. Produces: its scores. Waits for: the verifiers. Unblocked by: their timeouts.
        """
        scorer: Any = copy(self._scorers[task])  # with the counts of this call only
        scorer.timeouts, scorer.failures = 0, CallFailures("")
        pending = scorer.submit(prompt, completions)
        return ScoredCompletions(pending.finish(pending.futures), scorer.timeouts, scorer.failures.problems)


class CallFailures(Failures):
    """Failures of one call of an actor; the trainer counts those of all actors."""

    def count(self, completions: int, problems: list[str]) -> None:
        """Store the problems."""
        self.problems = problems


class ScoredCompletions(NamedTuple):
    """An actor's result for one prompt's completions.

    Example: ScoredCompletions(scores=[Score(1.0, True), Score(-1.0, False)], timeouts=0, problems=[])
    """

    scores: list[Score]
    timeouts: int
    """Number of verifiers stopped by their timeout."""
    problems: list[str]
    """One message per completion without a reward."""


class ActorPool:
    """The scorer actors of a run. Ray restarts an actor that died and scores its groups again."""

    def __init__(
        self, ray: Any, tasks: Sequence[TaskData], settings: Scoring, count: int, resources: Mapping[str, float]
    ) -> None:
        """Start the actors and wait until they are ready.

        Args:
            ray: The module `ray`, connected.
            tasks: Tasks of the run.
            settings: Settings of their verifiers and reward functions.
            count: Number of actors.
            resources: num_cpus of each.

        Raises:
            ConfigError: The cluster lacks resources, or a reward function cannot be imported there.
        """
        self._ray = ray
        actor = ray.remote(
            max_concurrency=GROUPS_AT_ONCE, max_restarts=RESTARTS, max_task_retries=MOST_DEATHS - 1, **resources
        )(ScorerActor)
        settings = replace(settings, workers=settings.processes(1))
        self._actors = [actor.remote(tasks, settings) for _ in range(count)]
        self._under_way = [0] * count
        try:
            ray.get([actor.ready.remote() for actor in self._actors], timeout=ACTOR_PLACED_S)
        except ray.exceptions.RayError as error:
            self.close()
            raise ConfigError(f"placement.scorers: a scorer could not be started: {last_line(error)}") from None

    def send(self, task: str, prompt: Prompt, completions: Sequence[str]) -> tuple[int, Future[Any]]:
        """Send a group to the actor with the fewest groups; return its number in the pool, and the answer."""
        number = min(range(len(self._actors)), key=self._under_way.__getitem__)
        self._under_way[number] += 1
        return number, self._actors[number].judge.remote(task, prompt, completions).future()

    def result(self, number: int, answer: Future[Any], task: str) -> ScoredCompletions:
        """Wait for the answer to a group.

        Raises:
            RewardError: The group's actor died `MOST_DEATHS` times.
            Exception: Raised by the scorer.
        """
        self._under_way[number] -= 1
        try:
            judged: ScoredCompletions = answer.result()
            return judged
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except self._ray.exceptions.RayActorError:
            raise RewardError(
                f"a scorer died {MOST_DEATHS} times while scoring a prompt of {task!r}; see Ray's logs"
            ) from None

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)


class ActorScorer(Scorer):
    """Scores completions of one task in the actors of a pool; implements Scorer (training/rewards/scoring.py)."""

    def __init__(self, pool: ActorPool, task: str, near: Scorer) -> None:
        """Use a pool; `near` is the same scorer in this process, which scores truncated completions."""
        self._pool, self._task, self._near = pool, task, near
        self.failures = Failures(f"the rewards of {task}")

    def submit(self, prompt: Prompt, completions: Sequence[str]) -> Pending:
        """Start to score completions of one prompt."""
        number, answer = self._pool.send(self._task, prompt, list(completions))
        return Pending([answer], lambda futures: self._count(self._pool.result(number, answer, self._task)))

    def _count(self, judged: ScoredCompletions) -> list[Score]:
        self.timeouts += judged.timeouts
        self.failures.count(len(judged.scores), judged.problems)
        return judged.scores

    def truncated(self, score: Score) -> Score:
        """Return the score of a truncated completion."""
        return self._near.truncated(score)

    def close(self) -> None:
        """End the actors of the pool."""
        self._pool.close()
        self._near.close()


def actor_scorers(
    ray: Any, count: int, resources: Mapping[str, float], tasks: Sequence[TaskData], settings: Scoring
) -> dict[str, Scorer]:
    """Return a scorer per task, all in the same `count` actors; raises what `make_scorers` and ActorPool raise."""
    near = make_scorers(tasks, settings)  # its processes start at the first call, which never comes
    pool = ActorPool(ray, tasks, settings, count, resources)
    return {name: ActorScorer(pool, name, scorer) for name, scorer in near.items()}
