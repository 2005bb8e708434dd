"""User-defined tasks: rows and scores from a class given by its import path."""

import pytest

from scalerl.core.types import Prompt
from scalerl.training.config.data import CustomTask
from scalerl.training.rewards import custom
from scalerl.training.rewards.base import Verdict

MODULE = """
    class Doubles:
        def __init__(self, largest=9):
            self.largest = largest
        def rows(self, count):
            for n in range(self.largest + 1):
                yield {"prompt": f"2 x {n} =", "n": n}
                yield {"prompt": f"2 x {n} =", "n": n}
        def score(self, row, completion):
            if completion == "half":
                return 0.5, "half right"
            return completion == str(2 * row["n"])
"""


@pytest.fixture(autouse=True)
def module(user_code):
    user_code("own_tasks", MODULE)


def task(name, **settings):
    return CustomTask(function=f"own_tasks:{name}", **settings)


def test_rows_are_distinct_and_scores_become_verdicts():
    rows, replies = custom.rows(task("Doubles", params={"largest": 4}), 5)
    assert not replies
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 4]  # each was made twice
    columns = {"function": "own_tasks:Doubles", "params": {"largest": 4}, "pass_score": 0.5, "row": rows[3]}
    asked = Prompt("0" * 16, "2 x 3 =", (1,), "", "Doubles", columns)
    assert custom.verify(asked, "6") == Verdict(True, 1.0, "score 1")
    assert custom.verify(asked, "7") == Verdict(False, 0.0, "score 0")
    assert custom.verify(asked, "half") == Verdict(True, 0.5, "half right")
