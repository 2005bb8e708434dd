"""Scoring of finished groups in parallel with training.

A completion whose verifier hangs is wrong and is counted in `timeouts`. A completion whose reward fails (a function,
verifier or environment raises, or does not return a number; a function or environment hangs) has no reward
(`Score.counted`); the run ends if more than 5% fail.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

from scalerl.core.errors import ConfigError
from scalerl.core.limits import REWARD_S
from scalerl.core.packages import check_installed
from scalerl.core.plugins import PluginError, call, load_function
from scalerl.core.types import Group, Prompt, Score, ScoredGroup
from scalerl.training.config.data import AgentTask, EnvironmentTask, PromptFile, TaskData
from scalerl.training.config.run import Scoring
from scalerl.training.rewards import verifiers_environments
from scalerl.training.rewards.base import CORRECT, INCORRECT, Verdict, Verifier, judged_text, reward, verdict
from scalerl.training.rewards.pool import ProcessEnded, ScoringPool
from scalerl.training.rewards.repetition import stands_in
from scalerl.training.rewards.user_rewards import Failures, call_by_name
from scalerl.training.rewards.verifiers import VERIFIERS

Decode = Callable[[Sequence[int], Sequence[int]], str]
"""(tokens of the prompt, tokens of a completion) -> the text that is judged."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Scores of some completions that are being computed."""

    futures: Sequence[Future[Any]]
    finish: Callable[[Sequence[Future[Any]]], list[Score]]
    """Called when all futures are done."""


class Scorer(Protocol):
    """Scores completions of one task."""

    failures: Failures
    """Completions that got no reward."""
    timeouts: int = 0
    """Number of completions so far whose verifier had to be stopped."""

    def submit(self, prompt: Prompt, completions: Sequence[str]) -> Pending:
        """Start scoring completions of one prompt."""

    def truncated(self, score: Score) -> Score:
        """Return the score of a truncated completion, given the score of its text: that of a wrong answer."""
        return reward(verdict(False, "truncated before an answer"))

    def close(self) -> None:
        """Stop all processes and threads."""


class ScoringService:
    """Scores groups in the background, in the order in which they are submitted."""

    def __init__(self, scorers: Mapping[str, Scorer], decode: Decode) -> None:
        """Start the thread that submits groups."""
        self._scorers, self._decode = scorers, decode
        # one thread, so that a stateful reward function is called in the same order in every run
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="scoring")

    @property
    def timeouts(self) -> int:
        """Number of completions so far whose verifier had to be stopped."""
        return sum(scorer.timeouts for scorer in self._scorers.values())

    @property
    def failures(self) -> int:
        """Number of completions so far whose reward failed."""
        return sum(scorer.failures.failed for scorer in self._scorers.values())

    def notes(self) -> list[str]:
        """Return the failures that have not been returned yet."""
        return [note for scorer in self._scorers.values() for note in scorer.failures.news()]

    def state(self) -> dict[str, Any]:
        """Return the counters of each task as plain values. Groups count when their scores are taken."""
        return {
            task: {"timeouts": scorer.timeouts, "failures": scorer.failures.state()}
            for task, scorer in self._scorers.items()
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`."""
        for task, counters in state.items():
            self._scorers[task].timeouts = counters["timeouts"]
            self._scorers[task].failures.load_state(counters["failures"])

    def submit(self, group: Group) -> PendingGroup:
        """Start scoring a group; return at once."""
        return PendingGroup(group, self._scorers[group.visit.prompt.task], self._starter.submit(self._begin, group))

    def _begin(self, group: Group) -> Pending:
        """Decode a group and submit it to its scorer. Never waits for a score."""
        if any(rollout.outcome for rollout in group.rollouts):
            failures = self._scorers[group.visit.prompt.task].failures
            return Pending([], lambda _: _outcomes(group, failures))
        prompt = group.visit.prompt
        texts = [self._decode(prompt.tokens, rollout.tokens.tolist()) for rollout in group.rollouts]
        return self._scorers[prompt.task].submit(prompt, texts)

    def close(self) -> None:
        """Stop all processes and threads."""
        self._starter.shutdown(wait=True, cancel_futures=True)
        for scorer in self._scorers.values():
            scorer.close()


class PendingGroup:
    """A group whose scores are being computed."""

    def __init__(self, group: Group, scorer: Scorer, begun: Future[Pending]) -> None:
        self.group, self._scorer, self._begun = group, scorer, begun

    def wait(self, seconds: float) -> bool:
        """Wait for the scores for at most `seconds`; return whether they are ready (or failed)."""
        if not wait([self._begun], seconds).done:
            return False
        return self._begun.exception() is not None or not wait(self._begun.result().futures, seconds).not_done

    def result(self) -> ScoredGroup:
        """Wait for the scores and return the group with them. An incomplete rollout never passes.

        Raises:
            RewardError: More than 5% of the task's completions got no reward.
        """
        pending = self._begun.result()
        scores = pending.finish(pending.futures)
        pairs = zip(scores, self.group.rollouts, strict=True)
        return ScoredGroup(self.group, tuple(self._truncated(s) if r.incomplete else s for s, r in pairs))

    def _truncated(self, score: Score) -> Score:
        return replace(self._scorer.truncated(score), of_turns=score.of_turns)


def make_scorers(tasks: Sequence[TaskData], settings: Scoring) -> dict[str, Scorer]:
    """Return a scorer for each task, by the task's name.

    Raises:
        ConfigError: A reward function cannot be imported.
    """
    return {task.curve: make_scorer(task, settings) for task in tasks}


def make_scorer(task: TaskData, settings: Scoring) -> Scorer:
    """Return the scorer of a task.

    Raises:
        ConfigError: Its reward function cannot be imported.
    """
    if isinstance(task, PromptFile) and task.reward:
        load_function(task.reward.function, "data.reward")  # refused now, not during the run
        return FunctionScorer(
            task.reward.function, task.pass_reward, settings, task.truncated_reward, task.reward.params
        )
    if isinstance(task, AgentTask):  # the program gives the reward, so the function is never called
        scorer = FunctionScorer(task.curve, task.pass_reward, settings, None)
        scorer.failures = Failures(f"the agent {task.curve}")
        return scorer
    if isinstance(task, EnvironmentTask):
        scorer = FunctionScorer(verifiers_environments.REWARD, task.pass_reward, settings, task.truncated_reward)
        scorer.failures = Failures(f"the environment {task.curve}")
        return scorer
    return verifier_scorer(task.verifier, settings)


def verifier_scorer(name: str, settings: Scoring) -> ThreadScorer | ProcessScorer:
    """Return the scorer of a verifier in `VERIFIERS`.

    Raises:
        ConfigError: A package that it needs is not installed.
    """
    verifier = VERIFIERS[name]
    check_installed(verifier.modules)
    return (ProcessScorer if verifier.killable else ThreadScorer)(name, verifier, settings)


def judge_all(scorer: Scorer, answers: Sequence[tuple[Prompt, str]]) -> Iterator[tuple[Prompt, Score]]:
    """Yield each prompt with the score of its completion, in order, and close the scorer at the end."""
    try:
        for prompt, pending in [(prompt, scorer.submit(prompt, [text])) for prompt, text in answers]:
            yield prompt, pending.finish(pending.futures)[0]
    finally:
        scorer.close()


class ThreadScorer(Scorer):
    """Calls a verifier that cannot hang in threads of this process."""

    def __init__(self, name: str, verifier: Verifier, settings: Scoring) -> None:
        self._verify, self.failures = verifier.verify, Failures(f"the verifier {name}")
        self._per_completion = verifier.threads is not None
        if verifier.prepare:
            verifier.prepare(settings)
        threads = verifier.threads(settings) if verifier.threads else settings.processes(1)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"verify-{name}")

    def submit(self, prompt: Prompt, completions: Sequence[str]) -> Pending:
        """Start scoring completions of one prompt: +1 for a pass, -1 for a wrong one."""
        parts = [[text] for text in completions] if self._per_completion else [completions]
        done = [self._threads.submit(self._verdicts, prompt, part) for part in parts]

        def finish(futures: Sequence[Future[Any]]) -> list[Score]:
            verdicts = [verdict for future in futures for verdict in future.result()]
            return _judged(prompt, completions, verdicts, self.failures)

        return Pending(done, finish)

    def _verdicts(self, prompt: Prompt, completions: Sequence[str]) -> list[Verdict | str]:
        return [_safely(self._verify, prompt, text) for text in completions]

    def close(self) -> None:
        """Stop the threads after their current call."""
        self._threads.shutdown(wait=True, cancel_futures=True)


class ProcessScorer(Scorer):
    """Calls a verifier in processes that are killed at a time limit."""

    def __init__(self, name: str, verifier: Verifier, settings: Scoring) -> None:
        self._name, self._limit_s = name, verifier.limit_s(settings)
        self.failures = Failures(f"the verifier {name}")
        workers = settings.processes(max(1, (os.cpu_count() or 2) - verifier.spared_cores))
        self._pool = ScoringPool(workers, verifier.prepare, settings)

    def submit(self, prompt: Prompt, completions: Sequence[str]) -> Pending:
        """Start scoring completions: +1 for a pass, -1 for a wrong one, a crash or a timeout of the verifier."""
        calls = [self._pool.schedule(_verify, self._name, prompt, text, limit_s=self._limit_s) for text in completions]

        def finish(futures: Sequence[Future[Any]]) -> list[Score]:
            return _judged(prompt, completions, [self._result(future) for future in futures], self.failures)

        return Pending(calls, finish)

    def _result(self, call: Future[Any]) -> Verdict | str:
        try:
            return call.result()  # type: ignore[no-any-return]
        except TimeoutError:
            reason = f"the verifier took longer than {self._limit_s:g} s"
        except ProcessEnded as error:
            reason = f"the verifier's process ended {error}"
            if self._name == "custom":  # a crash of the user's code; with other verifiers the completion is the cause
                return reason
        self.timeouts += 1
        return verdict(False, reason)

    def close(self) -> None:
        """Kill the processes."""
        self._pool.close()


class FunctionScorer(Scorer):
    """Calls a user's reward function in separate processes; a reward of at least `pass_reward` passes."""

    def __init__(
        self,
        function: str,
        pass_reward: float,
        settings: Scoring,
        truncated_reward: float | None = 0.0,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the processes.

        Args:
            function: Import path.
            pass_reward: Minimum reward that passes.
            settings: Scoring settings of the run.
            truncated_reward: Maximum reward of a truncated completion; None: the function's reward.
            params: Keyword arguments of the function.
        """
        self.failures, self._params = Failures(f"reward function {function}"), dict(params or {})
        self._truncated_reward = truncated_reward
        self._function, self._pass_reward = function, pass_reward
        self._pool = ScoringPool(settings.processes(1), None, settings)

    def submit(self, prompt: Prompt, completions: Sequence[str]) -> Pending:
        """Start one call with all completions of a prompt."""
        words = (self._function, prompt, list(completions), self._params)
        call = self._pool.schedule(call_by_name, *words, limit_s=REWARD_S)
        return Pending([call], lambda futures: self._scores(futures[0], prompt, completions))

    def _scores(self, call: Future[Any], prompt: Prompt, completions: Sequence[str]) -> list[Score]:
        rewards: list[float | str]
        try:
            rewards = call.result()
        except TimeoutError:
            late = (
                f"reward function {self._function} took longer than {REWARD_S:g} s for the completions of one "
                "prompt; make it faster, or have it score a few of them at the same time"
            )
            rewards = [late] * len(completions)
        except ProcessEnded as error:
            rewards = [f"reward function {self._function} ended its process {error}"] * len(completions)
        scores = [
            reward if isinstance(reward, str) else Score(reward, reward >= self._pass_reward) for reward in rewards
        ]
        return _marked(prompt, map(judged_text, completions), _scores(scores, self.failures))

    def truncated(self, score: Score) -> Score:
        """Return a failing score with at most the task's reward for truncated completions (None: no limit)."""
        if not score.counted:
            return score
        most = math.inf if self._truncated_reward is None else self._truncated_reward
        return Score(min(score.reward, most), False, score.reason)

    def close(self) -> None:
        """Kill the processes."""
        self._pool.close()


def _scores(scores: Sequence[Score | str], failures: Failures) -> list[Score]:
    """Count the failures, which are given as text, and return them as scores without a reward."""
    failures.count(len(scores), [score for score in scores if isinstance(score, str)])
    return [Score.missing(score) if isinstance(score, str) else score for score in scores]


def _outcomes(group: Group, failures: Failures) -> list[Score]:
    """Return the scores that environments gave, and the rewards of turns in the same unit.

    A score from 0 to 1 becomes a reward from -1 to 1, so a reward of a turn is doubled. The shift would matter to
    discounted returns, whose sum it is not, so turns do not have it.
    """
    columns, scores = group.visit.prompt.columns, list[Score | str]()
    for outcome in (rollout.outcome for rollout in group.rollouts):
        assert outcome is not None
        got, reason = outcome.score, f"score {outcome.score:g} after {outcome.turns} turns"
        if "pass_reward" in columns:  # a reward in any scale
            score, unit = Score(got, got >= columns["pass_reward"], reason), 1.0
        else:
            score, unit = reward(Verdict(got >= columns["pass_score"], got, reason)), CORRECT - INCORRECT
        of_turns = outcome.rewards or (*[0.0] * (outcome.turns - 1), got)
        scores.append(outcome.problem or replace(score, of_turns=tuple(unit * turn_reward for turn_reward in of_turns)))
    return _scores(scores, failures)


def _verify(name: str, prompt: Prompt, completion: str) -> Verdict | str:
    return _safely(VERIFIERS[name].verify, prompt, completion)


def _safely(verify: Callable[[Prompt, str], Verdict], prompt: Prompt, completion: str) -> Verdict | str:
    """Return the verdict, or a description of the verifier's failure."""
    try:
        return call(verify, "the verifier", prompt, completion)  # type: ignore[no-any-return]
    except (PluginError, ConfigError) as error:  # counted as a failure of one completion (`Failures`)
        return str(error)


def _judged(
    prompt: Prompt, completions: Sequence[str], verdicts: Sequence[Verdict | str], failures: Failures
) -> list[Score]:
    """Return the scores of verdicts, and of failures of the verifier, which are given as text."""
    pairs = zip(verdicts, completions, strict=True)
    answers = [
        judged_text(text) if isinstance(verdict, str) or verdict.answer is None else verdict.answer
        for verdict, text in pairs
    ]
    scores = _scores([verdict if isinstance(verdict, str) else reward(verdict) for verdict in verdicts], failures)
    return _marked(prompt, answers, scores)


def _marked(prompt: Prompt, answers: Iterable[str], scores: Sequence[Score]) -> list[Score]:
    """Return the scores with a mark on those that passed with an answer that stands in the prompt."""
    pairs = zip(scores, answers, strict=True)
    return [replace(score, in_prompt=score.passed and stands_in(answer, prompt)) for score, answer in pairs]
