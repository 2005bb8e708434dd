"""Long, deep and odd answers: they get a verdict soon, and no error."""

import time

import pytest

from scalerl.core.types import Prompt
from scalerl.training.rewards import math
from scalerl.training.rewards.base import LONGEST_TEXT, without_marks
from scalerl.training.rewards.code_answer import program_of

SIZE, LARGE = 1_200_000, 10_000_000
"""Characters: somewhat more than those that are judged, and ten megabytes."""
SLOWEST = ("<answer>", "</think>", "<|im_end|>", " ", "`")
"""Units that cost the most in ten megabytes."""
SCRIPTS = "".join(map(chr, (
    0x41, 0x391, 0x410, 0x531, 0x5D0, 0x627, 0x905, 0x985, 0xA05, 0xA85, 0xB05, 0xB85, 0xC05, 0xC85, 0xD05, 0xD85,
    0xE01, 0xE81, 0xF40, 0x1000, 0x10D0, 0x1100, 0x1200, 0x13A0, 0x1401, 0x1680, 0x16A0, 0x1780, 0x1820, 0x1D00,
    0x2C00, 0x2D30, 0x3041, 0x30A1, 0x3105, 0x4E00, 0xA000, 0xAC00, 0x10300, 0x12000,
)))  # fmt: skip
UNITS = (
    "4", "word ", r"\boxed{", r"\boxed{41} and then ", "{", "(", "$", "$1$ ", "the answer is ", "the answer is 42. ",
    "<answer>", "<answer>41</answer>", "<think>", "</think>", "#### ", "#### 41\n", "#", "\0", "\x08\x0c\x1b", "\n",
    " ", SCRIPTS, r"\frac", "**", "`", "```", "```python\n", '"', '{"answer": ', "答案是", "选", "option A ", "D is ",
    "solutions are ", "is not 1 ", "<|im_end|>", r"\begin{aligned}", "def f(x):\n", "x = 1\n", "<code>", "[BEGIN]",
    "> ",
)  # fmt: skip
DEEP = 10_000
NESTED = {
    "braces": r"\boxed{" + "{" * DEEP + "42" + "}" * DEEP + "}",
    "fractions": r"\boxed{" + r"\frac{1}{" * DEEP + "2" + "}" * DEEP + "}",
    "roots": r"\boxed{" + r"\sqrt{" * DEEP + "2" + "}" * DEEP + "}",
    "brackets": r"\boxed{" + "(" * DEEP + "42" + ")" * DEEP + "}",
    "powers": r"\boxed{" + "2^{" * DEEP + "2" + "}" * DEEP + "}",
    "environments": r"\boxed{" + r"\begin{cases}" * DEEP + "}",
    "factorials": r"\boxed{9!9!9!!!!!}",
    "a tower": r"\boxed{9^{9^{9^{9}}}}",
    "a long sum": r"\boxed{" + "1+" * 900 + "1}",
}


def passed(completion):
    return math.verify(Prompt("0" * 16, "q", (1,), "42", "math", {"prompt": "q"}), completion).passed


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS, ids=[ascii(unit[:20]) for unit in UNITS])
def test_megabytes_of_anything_take_seconds_and_hide_no_answer(unit):
    text = unit * ((LARGE if unit in SLOWEST else SIZE) // len(unit))
    began = time.process_time()
    passed(text)
    program_of(text, ["f"], True)
    found = passed(text + "</think>\nTherefore \\boxed{42}")
    assert time.process_time() - began < 20  # 0.1 to 3 s on a quiet machine
    assert found


@pytest.mark.parametrize("name", list(NESTED))
def test_a_deep_answer_gets_a_verdict(name):
    began = time.process_time()
    assert passed(NESTED[name]) is (name == "braces" and passed(NESTED[name]))
    assert time.process_time() - began < 5


def test_of_a_long_text_the_end_is_judged():
    assert passed("x" * (2 * LONGEST_TEXT) + " The answer is 42.")
    assert not passed("The answer is 42. " + "x " * LONGEST_TEXT)


def test_marks_are_removed_from_both_ends_without_the_space_outside():
    assert without_marks("  <|a|>  <|b|> x <|c|> \n<|d|>  ", r"<\|\w\|>") == " x "
    assert without_marks(" x ", r"<\|\w\|>") == " x " and without_marks("<|a|> <|b|>", r"<\|\w\|>").strip() == ""
