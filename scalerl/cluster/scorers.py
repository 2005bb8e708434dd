"""Verifiers and reward functions in Ray actors, so that scoring is not limited to the trainer's node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from scalerl.cluster.connect import STARTED_S, last_line
from scalerl.cluster.devices import devices
from scalerl.config.base import replace
from scalerl.config.data import TaskData
from scalerl.config.run import RunConfig, Scoring
from scalerl.core.errors import ConfigError
from scalerl.tasks.scoring import Pending, Scorer, make_scorer
from scalerl.tasks.user_rewards import Failures
from scalerl.types import Prompt, Score

GROUPS = 64
"""Groups that are sent to one actor at a time; its process pool limits how many are scored in parallel."""
ATTEMPTS = 3
"""Attempts to score one group, each in another actor, before the run stops."""


class ScorerActor:
    """The scorers of all tasks of a run, in a Ray process with a separate process pool."""

    def __init__(self, tasks: Sequence[TaskData], settings: Scoring) -> None:
        self._scorers = {task.curve: make_scorer(task, settings) for task in tasks}
        self._failures = CallFailures()
        for scorer in self._scorers.values():
            scorer.failures = self._failures

    def ready(self) -> None:
        """Return when the actor has started."""

    def judge(self, task: str, prompt: Prompt, completions: Sequence[str]) -> Judged:
        """Return the scores of one prompt's completions.

        Consumes: one group. Produces: its scores. Waits for: the verifiers. Unblocked by: their timeouts.
        """
        scorer = self._scorers[task]
        pending = scorer.submit(prompt, completions)
        return Judged(pending.finish(pending.futures), scorer.timeouts, self._failures.take())


class CallFailures(Failures):
    """Failures in one call of an actor; the trainer adds up the failures of all actors."""

    def __init__(self) -> None:
        super().__init__("", limit=1.0)
        self._local = threading.local()  # an actor scores several groups at a time, each in a separate thread

    def count(self, completions: int, problems: list[str]) -> None:
        """Store the problems of this call."""
        self._local.problems = problems

    def take(self) -> list[str]:
        """Return the problems of this thread's last call."""
        problems: list[str] = self._local.problems
        return problems


class Judged(NamedTuple):
    """An actor's result for one prompt's completions.

    Example: Judged(scores=[Score(1.0, True), Score(-1.0, False)], timeouts=0, problems=[])
    """

    scores: list[Score]
    timeouts: int
    """Number of verifiers stopped by their timeout in this actor so far."""
    problems: list[str]
    """One message per completion without a reward."""


class ActorPool:
    """The scorer actors of a run; a dead actor is replaced and its groups are scored again."""

    def __init__(self, ray: Any, config: RunConfig) -> None:
        """Start the actors and wait until they are ready.

        Args:
            ray: The module `ray`, connected.
            config: Resolved configuration; `placement.scorers` is the number of actors.

        Raises:
            ConfigError: The cluster lacks resources, or a reward function cannot be imported there.
        """
        self._ray, self._config = ray, config
        self.deaths = 0
        """Number of actors that died and were replaced."""
        self._actors = [self._start() for _ in range(config.placement.scorers)]
        self._under_way = [0] * len(self._actors)
        try:
            ray.get([actor.ready.remote() for actor in self._actors], timeout=STARTED_S)
        except ray.exceptions.RayError as error:
            self.close()
            raise ConfigError(f"placement.scorers: a scorer could not be started: {last_line(error)}") from None

    def _start(self) -> Any:
        scoring = self._config.scoring
        settings = replace(scoring, workers=scoring.workers or 1)
        resources = devices(self._config)["scorer", 0].resources
        actor = self._ray.remote(max_concurrency=GROUPS, max_restarts=0, **resources)(ScorerActor)
        return actor.remote(self._config.data, settings)

    def judge(self, task: str, prompt: Prompt, completions: Sequence[str]) -> tuple[int, Any, Future[Any]]:
        """Send a group to the actor with the fewest groups; return its position, the actor, and the future."""
        number = min(range(len(self._actors)), key=self._under_way.__getitem__)
        self._under_way[number] += 1
        actor = self._actors[number]
        return number, actor, actor.judge.remote(task, prompt, list(completions)).future()

    def result(self, number: int, actor: Any, answer: Future[Any]) -> Judged | None:
        """Return the answer of an actor; None if the actor died and has been replaced.

        Raises:
            Exception: Raised by the scorer.
        """
        self._under_way[number] -= 1
        try:
            found: Judged = answer.result()
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except self._ray.exceptions.RayActorError:
            if self._actors[number] is actor:  # several groups may see the same death
                self._actors[number] = self._start()
                self.deaths += 1
            return None
        return found

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)


class ActorScorer:
    """Scores completions of one task in the actors of a pool; implements Scorer (tasks/scoring.py)."""

    def __init__(self, pool: ActorPool, task: str, truncated: Callable[[Score], Score]) -> None:
        self._pool, self._task, self._truncated = pool, task, truncated
        self.failures = Failures(f"the rewards of {task}")
        self._timeouts: dict[Any, int] = {}

    @property
    def timeouts(self) -> int:
        """Number of verifiers stopped by their timeout so far."""
        return sum(self._timeouts.values())

    def submit(self, prompt: Prompt, completions: Sequence[str]) -> Pending:
        """Start to score completions of one prompt."""
        number, actor, answer = self._pool.judge(self._task, prompt, completions)

        def finish(futures: Sequence[Future[Any]]) -> list[Score]:
            at, by, coming = number, actor, futures[0]
            for _ in range(ATTEMPTS):
                found = self._pool.result(at, by, coming)
                if found is not None:
                    self._timeouts[by] = found.timeouts
                    self.failures.count(len(found.scores), found.problems)
                    return found.scores
                at, by, coming = self._pool.judge(self._task, prompt, completions)
            raise RuntimeError(
                f"{ATTEMPTS} scorers died in a row while scoring a prompt of {self._task!r}; see Ray's "
                "logs, and continue the run with `scalerl resume`"
            )

        return Pending([answer], finish)

    def truncated(self, score: Score) -> Score:
        """Return the score of a truncated completion."""
        return self._truncated(score)

    def close(self) -> None:
        """End the actors of the pool."""
        self._pool.close()


def actor_scorers(ray: Any, config: RunConfig) -> dict[str, Scorer]:
    """Return a scorer per task, all in the same actors; raises what ActorPool raises."""
    local = {task.curve: make_scorer(task, config.scoring) for task in config.data}
    for scorer in local.values():
        scorer.close()  # used only to check the configuration and to score truncated completions
    pool = ActorPool(ray, config)
    return {name: ActorScorer(pool, name, scorer.truncated) for name, scorer in local.items()}
