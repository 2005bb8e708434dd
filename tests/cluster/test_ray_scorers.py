"""Scorers as Ray actors: the scores equal those of local processes, and a dead actor is replaced."""

import os
import textwrap
from pathlib import Path

import pytest

from scalerl.core.types import Prompt, Score
from scalerl.training.config.overrides import parse_config
from scalerl.training.placement.devices import devices
from scalerl.training.placement.sizes import UNREAD, RunSizes
from scalerl.training.rewards.scoring import make_scorers
from scalerl.training.rewards.user_rewards import RewardError

ray = pytest.importorskip("ray", reason="needs Ray")

REWARDS = """
    import os
    from pathlib import Path

    def f(prompts, completions, **columns):
        if completions[0] == "fail":
            raise ValueError("no reward for this")
        return [float(len(text)) for text in completions]

    def dies_once(prompts, completions, **columns):
        mark = Path(os.environ["MARK"])
        if not mark.exists():
            mark.write_text("")
            os.kill(os.getppid(), 9)  # the actor
        return [1.0] * len(completions)

"""


def prompt(task, answer="1"):
    return Prompt("0" * 16, "1=", (1,), answer, task, {"prompt": "1="})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Ray cluster whose workers can import the module `far_rewards`."""
    place = tmp_path_factory.mktemp("rewards")
    (place / "far_rewards.py").write_text(textwrap.dedent(REWARDS))
    path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "MARK": str(place / "mark")}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        for name, value in environment.items():
            patch.setenv(name, value)
        ray.init(
            address="local", num_cpus=4, include_dashboard=False, log_to_driver=False,
            runtime_env={"env_vars": environment},
        )  # fmt: skip
        yield ray
        ray.shutdown()


@pytest.fixture
def scorers(cluster):
    """Make the scorers of a configuration in actors; close them at the end."""
    from scalerl.training.machines.scorers import actor_scorers

    made = []

    def make(text):
        config = parse_config(text, "test")
        resources = devices(RunSizes.of(config, UNREAD))["scorer", 0].resources
        made.append(actor_scorers(cluster, config.placement.scorers, resources, config.data, config.scoring))
        return made[-1]

    yield make
    for scorers in made:
        for scorer in scorers.values():
            scorer.close()


def scores(scorer, asked, texts):
    pending = scorer.submit(asked, texts)
    return pending.finish(pending.futures)


PLACED = '[model]\nkind = "hf"\npath = "none"\n[placement]\nbackend = "ray"\nscorers = 2\n'


@pytest.mark.slow
def test_actors_give_the_same_scores_as_processes_next_to_the_trainer(scorers):
    text = PLACED + '[[data]]\nkind = "file"\npath = "none.jsonl"\n[[data]]\nkind = "arithmetic"'
    config = parse_config(text, "test")
    far, near = scorers(text), make_scorers(config.data, config.scoring)
    texts = ["so $x = 2$", "\\boxed{3}", ""]
    failed, passed = Score(-1.0, False), Score(1.0, True)
    for _ in range(3):  # over both actors
        assert scores(far["math"], prompt("math", "3"), texts) == [failed, passed, failed]
    assert scores(far["arithmetic"], prompt("arithmetic"), ["</think>1", "1"]) == [passed, failed]
    for name in ("math", "arithmetic"):
        assert far[name].truncated(passed) == near[name].truncated(passed) == failed
        near[name].close()


def function(name):
    return PLACED + f'[[data]]\nkind = "file"\npath = "none.jsonl"\nreward = "far_rewards:{name}"\npass_reward = 2.0'


@pytest.mark.slow
def test_failed_rewards_are_counted_over_all_actors_and_end_the_run_above_the_limit(scorers):
    scorer = scorers(function("f"))["far_rewards:f"]
    assert scores(scorer, prompt("far_rewards:f"), ["a", "abc"]) == [Score(1.0, False), Score(3.0, True)]
    for _ in range(12):  # over both actors
        scores(scorer, prompt("far_rewards:f"), ["a"] * 8)
    scores(scorer, prompt("far_rewards:f"), ["fail"] * 4)
    assert (scorer.failures.failed, scorer.failures.completions) == (4, 102)  # 4%
    assert "no reward for this" in scorer.failures.news()[0]
    with pytest.raises(RewardError, match="8 of 106 completions"):
        scores(scorer, prompt("far_rewards:f"), ["fail"] * 4)


@pytest.mark.slow
def test_a_scorer_that_dies_is_replaced_and_its_prompt_is_scored_again(scorers):
    scorer = scorers(function("dies_once"))["far_rewards:dies_once"]
    assert scores(scorer, prompt("far_rewards:dies_once"), ["a", "b"]) == [Score(1.0, False)] * 2
    assert Path(os.environ["MARK"]).exists()


def test_more_scorers_than_the_cluster_has_cores_are_an_error_before_the_run():
    from scalerl.training.placement.devices import devices, needs

    config = parse_config(PLACED + "generators = 3\n[scoring]\nworkers = 4\n[hardware]\ngenerator_threads = 3", "test")
    assert needs(devices(RunSizes.of(config, UNREAD))) == {"CPU": 3 + 2 * 4, "GPU": 0}
