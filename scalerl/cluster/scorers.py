"""Verifiers and reward functions in Ray actors, so that scoring is not limited to the trainer's node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from typing import Any, NamedTuple

from scalerl.cluster.connect import last_line
from scalerl.config.base import replace
from scalerl.config.data import TaskData
from scalerl.config.run import Scoring
from scalerl.core.errors import ConfigError
from scalerl.core.limits import ACTOR_PLACED_S, MOST_DEATHS
from scalerl.tasks.scoring import Pending, Scorer, make_scorer, make_scorers
from scalerl.tasks.user_rewards import Failures, RewardError
from scalerl.types import Prompt, Score

GROUPS = 64
"""Groups that are sent to one actor at a time; its process pool limits how many are scored in parallel."""


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

    Example: Judged(scores=[Score(1.0, True), Score(-1.0, False)], timeouts=0, problems=[])
    """

    scores: list[Score]
    timeouts: int
    """Number of verifiers stopped by their timeout."""
    problems: list[str]
    """One message per completion without a reward."""


class SentGroup(NamedTuple):
    """A group that was sent to an actor.

    Example: Sent(number=1, actor=Actor(ScorerActor, 8f3a...), answer=Future())
    """

    number: int
    """Position of the actor in the pool."""
    actor: Any
    """The actor, which may have been replaced since then."""
    answer: Future[Any]


class ActorPool:
    """The scorer actors of a run; a dead actor is replaced and its groups are scored again."""

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
        self._options = {"max_concurrency": GROUPS, "max_restarts": 0, **resources}
        self._arguments = tasks, replace(settings, workers=settings.processes(1))
        self.deaths = 0
        """Number of actors that died and were replaced."""
        self._actors = [self._start() for _ in range(count)]
        self._under_way = [0] * len(self._actors)
        try:
            ray.get([actor.ready.remote() for actor in self._actors], timeout=ACTOR_PLACED_S)
        except ray.exceptions.RayError as error:
            self.close()
            raise ConfigError(f"placement.scorers: a scorer could not be started: {last_line(error)}") from None

    def _start(self) -> Any:
        return self._ray.remote(**self._options)(ScorerActor).remote(*self._arguments)

    def send(self, task: str, prompt: Prompt, completions: Sequence[str]) -> SentGroup:
        """Send a group to the actor with the fewest groups."""
        number = min(range(len(self._actors)), key=self._under_way.__getitem__)
        self._under_way[number] += 1
        actor = self._actors[number]
        return SentGroup(number, actor, actor.judge.remote(task, prompt, completions).future())

    def result(self, sent: SentGroup, task: str, prompt: Prompt, completions: Sequence[str]) -> ScoredCompletions:
        """Return the answer to a group; if its actor has died, it is replaced and the group is sent again.

        Raises:
            RewardError: `MOST_DEATHS` actors died in a row.
            Exception: Raised by the scorer.
        """
        for _ in range(MOST_DEATHS):
            self._under_way[sent.number] -= 1
            try:
                judged: ScoredCompletions = sent.answer.result()
                return judged
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None
            except self._ray.exceptions.RayActorError:
                if self._actors[sent.number] is sent.actor:  # several groups may see the same death
                    self._actors[sent.number] = self._start()
                    self.deaths += 1
            sent = self.send(task, prompt, completions)
        raise RewardError(f"{MOST_DEATHS} scorers died in a row while scoring a prompt of {task!r}; see Ray's logs")

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)


class ActorScorer(Scorer):
    """Scores completions of one task in the actors of a pool; implements Scorer (tasks/scoring.py)."""

    def __init__(self, pool: ActorPool, task: str, near: Scorer) -> None:
        """Use a pool; `near` is the same scorer in this process, which scores truncated completions."""
        self._pool, self._task, self._near = pool, task, near
        self.failures = Failures(f"the rewards of {task}")

    def submit(self, prompt: Prompt, completions: Sequence[str]) -> Pending:
        """Start to score completions of one prompt."""
        group = self._task, prompt, list(completions)
        sent = self._pool.send(*group)
        return Pending([sent.answer], lambda futures: self._count(self._pool.result(sent, *group)))

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
