"""The start of user code: each step runs in another process and has a time limit."""

import sys
import time

import pytest
from texts import Tokenizer

from scalerl.core.errors import ConfigError
from scalerl.training.config.data import CustomTask, EnvironmentTask
from scalerl.training.config.run import Scoring
from scalerl.training.engines.turns import check_replies
from scalerl.training.prompts.dataset import task_prompts
from scalerl.training.rewards.pool import Trial

MODULE = """
    import os, time

    class Waits:
        def __init__(self, where, ends=False): self.where, self.ends = where, ends; self.at("init")
        def at(self, place):
            if self.where == place: os._exit(7) if self.ends else time.sleep(600)
        def rows(self, count):
            self.at("rows")
            return self.made(count)
        def made(self, count):
            for n in range(count):
                if n == 3: self.at("row 3")
                yield {"prompt": str(n)}

    class Scores(Waits):
        def score(self, row, completion): self.at("score"); return 0

    class Replies(Waits):
        def reply(self, row, messages): self.at("reply"); return 0

    class Open(Waits):
        def made(self, count):
            for n in range(count): yield {"prompt": str(n), "file": open(os.devnull)}
        def score(self, row, completion): return 0

    class Slow(Waits):
        def made(self, count):
            for n in range(count): time.sleep(0.7); yield {"prompt": str(n)}
        def score(self, row, completion): return 0
"""


@pytest.fixture(autouse=True)
def module(user_code):
    user_code("waiting", MODULE)


def start(name, where, ends=False, start_s=2.0, prompts=4):
    params = {"where": where, "ends": ends}
    task = CustomTask(function=f"waiting:{name}", params=params, prompts=prompts, start_s=start_s)
    prompts, _ = task_prompts(task, Tokenizer(), 1, Scoring())
    check_replies(prompts, Tokenizer(), Scoring())
    return prompts


STEPS = [
    ("Scores", "init", "__init__"),
    ("Replies", "row 3", "rows"),
    ("Replies", "reply", "reply"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "where", "method"), STEPS)
def test_a_step_that_hangs_is_an_error_that_says_what_to_do(name, where, method):
    began = time.monotonic()
    message = (
        f"data.start_s: waiting:{name}.{method} took longer than 2 s at the start of the run; .* raise data.start_s"
    )
    with pytest.raises(ConfigError, match=message):
        start(name, where)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(("name", "where", "method"), [STEPS[0], STEPS[2]])
def test_a_step_that_ends_its_process_is_an_error(name, where, method):
    message = rf"data.function: waiting:{name}.{method} ended its process 3 times \(exit code 7\)"
    with pytest.raises(ConfigError, match=message):
        start(name, where, ends=True, start_s=30.0)


def test_a_row_that_no_process_can_get_is_an_error_with_its_number():
    with pytest.raises(ConfigError, match=r"row 0 of waiting:Open cannot be sent to other processes \(.*TextIOWrapper"):
        start("Open", "")


@pytest.mark.slow
def test_many_rows_may_take_longer_than_the_limit_of_one():
    prompts = start("Slow", "", prompts=7)  # 5.6 s
    assert [prompt.text for prompt in prompts] == list("01234567")


@pytest.mark.slow
def test_an_environment_of_verifiers_that_hangs_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "verifiers.py").write_text("import time\n\ndef load_environment(name):\n    time.sleep(600)\n")
    task = EnvironmentTask(environment="hangs", start_s=2.0)
    try:
        with pytest.raises(ConfigError, match=r"data.start_s: hangs.load_environment took longer than 2 s"):
            task_prompts(task, Tokenizer(), 1, Scoring())
    finally:
        sys.modules.pop("verifiers", None)  # the run asks which interface the package has


@pytest.mark.slow
def test_a_process_that_died_makes_the_rest_of_the_rows(tmp_path):
    from scalerl.training.rewards import custom

    task = CustomTask(function="waiting:Slow", params={"where": ""}, prompts=4)
    with Trial(Scoring(), 30.0) as trial:
        first, complete = trial.step("rows", custom._more_rows, task, 6, 0)
        assert 1 <= len(first) < 6 and not complete
    with Trial(Scoring(), 30.0) as trial:
        rest, complete = trial.step("rows", custom._more_rows, task, 6, len(first))
    assert [row["prompt"] for row in first + rest] == list("012345")[: len(first + rest)] and rest
