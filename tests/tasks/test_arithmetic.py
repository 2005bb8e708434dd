import itertools

import pytest

from scalerl.core.types import Prompt
from scalerl.training.config import WarmStart
from scalerl.training.config.data import ArithmeticTask
from scalerl.training.rewards import arithmetic


def asked(answer):
    return Prompt("0" * 16, "", (1,), answer, "arithmetic")


def test_a_chain_is_evaluated_from_left_to_right_modulo_10():
    # 7+4=11 -> 1, 1*3=3, 3-8=-5 -> 5, 5+1=6, 6+2=8
    assert arithmetic.solve("7+4*3-8+1+2=<think>") == [1, 3, 5, 6, 8]


@pytest.mark.parametrize(
    ("completion", "passed"),
    [
        ("7+4=1;</think>8\n", True),
        ("</think>8", True),
        ("7+4=1;</think>7\n", False),
        ("7+4=1;8\n", False),
        ("</think>88\n", False),
        ("</think>\n", False),
        ("", False),
        ("</think>3</think>8\n", True),
    ],
)
def test_only_the_text_after_the_last_end_of_thinking_is_judged(completion, passed):
    assert arithmetic.verify(asked("8"), completion).passed is passed


def test_the_share_of_wrong_references_is_the_label_noise():
    task = ArithmeticTask(label_noise=0.12)
    rows = arithmetic.rows(task, 4000)
    wrong = sum(row["answer"] != str(arithmetic.solve(row["prompt"])[-1]) for row in rows)
    assert abs(wrong / 4000 - 0.12) < 0.02  # four standard errors
    assert all(row["answer"] == arithmetic.reference(row["prompt"], 0.12) for row in rows)
    exact = arithmetic.rows(ArithmeticTask(label_noise=0.0), 200)
    assert all(row["answer"] == str(arithmetic.solve(row["prompt"])[-1]) for row in exact)


def test_a_trace_without_noise_is_the_solution_and_scores():
    start = WarmStart(ramble=0.0)
    for prompt, completion in itertools.islice(arithmetic.traces(ArithmeticTask(), start, 0.0, "seed"), 50):
        assert arithmetic.verify(asked(str(arithmetic.solve(prompt)[-1])), completion).passed
        steps = completion.split("</think>")[0].rstrip(";").split(";")
        assert [int(step[-1]) for step in steps] == arithmetic.solve(prompt)
