"""The lab's programs: they run on the given points and on a hidden one; invalid programs fail."""

import itertools
import time

import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.types import Prompt
from scalerl.training.config import WarmStart
from scalerl.training.config.data import ProgramsTask
from scalerl.training.rewards import generated, programs
from scalerl.training.rewards.arithmetic import ALPHABET
from scalerl.training.rewards.base import THINK

SHOWN = ",0:4,1:7,6:2"  # 3x + 4: 4, 7, 22 -> 2
HIDDEN = ",8:8"  # 28 -> 8


def verify(completion, answer):
    return programs.verify(Prompt("0" * 16, "", (1,), answer, "programs"), completion).passed


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("x*3+4\n", True),
        ("x*3+4", True),
        ("3*x+4", True),
        ("x*3-6", True),  # -6 is 4 modulo 10
        ("x+x+x+4", True),
        ("4+x*3", False),  # from left to right: (4 + x) * 3
        ("x*8+4", False),  # right at 0, 6 and 8, wrong at 1: 8 + 4 = 12 -> 2
        ("x*3+", False),
        ("+x*3+4", False),
        ("x*3 +4", False),
        ("x*3+4;x", False),
    ],
)
def test_a_program_is_run_from_left_to_right_modulo_ten(program, passed):
    assert verify(f"b=4;7-4=3;</think>{program}", SHOWN + HIDDEN) is passed


@pytest.mark.parametrize(
    "completion",
    [
        "x*3+4\n",  # the thinking never ended
        "</think>x*3+4</think>\n",  # nothing after its last end
        "</think>x*\u0663+4",  # an Arabic three, which int() would read
        "</think>х*3+4",  # a Cyrillic letter
        "</think>x*3+4\nx*3+4",
        "</think>__import__('os')",
        "",
    ],
)
def test_invalid_programs_fail(completion):
    assert not verify(completion, SHOWN + HIDDEN)


def test_a_very_long_answer_fails_without_being_run():
    right = "x*3+4" + "+0" * 1_000_000
    began = time.process_time()
    assert not verify(f"</think>{right}", SHOWN + HIDDEN)
    assert time.process_time() - began < 0.5
    assert verify("</think>" + right[: programs.LONGEST_PROGRAM - 1], SHOWN + HIDDEN)


def test_the_hidden_point_decides_between_programs_that_fit_the_given_points():
    # x*x is 0, 1, 4, ...; at 0, 1, 5 and 6 it is x itself modulo 10 (0, 1, 25 -> 5, 36 -> 6), at 3 it is 9
    shown = ",0:0,1:1,5:5,6:6"
    assert verify("</think>x*x", shown) and verify("</think>x", shown)
    assert verify("</think>x", shown + ",3:3") and not verify("</think>x*x", shown + ",3:3")


def test_no_right_program_passes_a_noisy_hidden_point():
    task = ProgramsTask(label_noise=0.12)
    rows = programs.rows(task, 4000)
    wrong = 0
    for row in rows:
        (_, b), (_, one), *others = programs.points_of_text(row["prompt"])
        *shown, (x, y) = programs.points_of_text(row["answer"])
        a = (one - b) % 10
        assert shown == programs.points_of_text(row["prompt"]) and x not in {place for place, _ in shown}
        assert all((a * place + b) % 10 == value for place, value in others)
        wrong += (a * x + b) % 10 != y
        assert verify(f"</think>x*{a}+{b}\n", row["answer"]) is ((a * x + b) % 10 == y)
    assert abs(wrong / 4000 - 0.12) < 0.02  # four standard errors


def test_the_number_of_prompts_is_the_documented_one():
    task, count = ProgramsTask(label_noise=0.0), 5600
    rows = programs.rows(task, count)
    assert len({row["prompt"] for row in rows}) == count
    assert [row["prompt"] for row in programs.rows(task, 100)] == [row["prompt"] for row in rows[:100]]
    with pytest.raises(ConfigError, match=f"{count:,} distinct"):
        programs.rows(task, count + 1)


def test_a_trace_without_noise_is_a_derivation_and_scores():
    start = WarmStart(ramble=0.0)
    for prompt, completion in itertools.islice(programs.traces(ProgramsTask(), start, 0.0, "seed"), 50):
        assert verify(completion, programs.reference(prompt, 0.0))
        assert len(completion.split("</think>")[0].rstrip(";").split(";")) == 4  # b, a and two checks
    traces = dict(itertools.islice(programs.traces(ProgramsTask(), start, 0.0, "seed"), 60_000))
    assert traces[SHOWN + ",2:0<think>"] == "b=4;7-4=3;3*6=8;3*2=6;</think>x*3+4\n"


def test_all_texts_are_in_the_labs_alphabet():
    for task in generated.GENERATED.values():
        texts = "".join(text + digit for text, digit in task.facts()).replace(THINK, "")
        assert set(texts) <= set(ALPHABET)
