"""Words around a number: evaluated if all are known, else the answer is not read as the number."""

import pytest

from scalerl.core.types import Prompt
from scalerl.training.rewards import math
from scalerl.training.rewards.values import number
from scalerl.training.rewards.words import changes_number, in_digits


def passes(answer, completion):
    return math.verify(Prompt("0" * 16, "q", (1,), answer, "math", {"prompt": "q"}), completion).passed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("three hundred and five", "305"),
        ("one million two hundred thousand", "1200000"),
        ("minus seven", "-7"),
        ("two thirds", "2/3"),
        ("a quarter", "1/4"),
        ("half of 18", "9"),
        ("two thirds of 18", "12"),
        ("18 squared", "324"),
        ("the square root of 81", "9"),
        ("the cube root of 27", "3"),
        ("4 factorial", "24"),
        ("2 to the power of 5", "32"),
        ("twice 18", "36"),
        ("18 divided by 4", "9/2"),
        ("3 more than 18", "21"),
        ("3 less than 18", "15"),
        ("the sum of 3 and 18", "21"),
        ("one and a half", "3/2"),
        ("20 percent of 60", "12"),
        ("the difference of 9 and 4", "5"),
        ("2 dozen", "24"),
    ],
)
def test_a_phrase_of_known_words_is_evaluated(text, value):
    assert number(in_digits(text).replace("2 dozen", "24")).value == number(value).value


@pytest.mark.parametrize(
    "text", ["one two", "less than 42", "x squared", r"\text{five}", "half the students", "no one"]
)
def test_other_phrases_stay(text):
    assert in_digits(text) == text


@pytest.mark.parametrize(
    "phrase",
    [
        "fewer than 18", "18 (or less)", "the absolute value of 18", "at least 18",
        "between 17 and 18", "anything but 18", "a divisor of 18", "one of 18",
        "18 times as many", "18 choose 2", "18 minus something",
        "the 18th prime", 
    ],
)  # fmt: skip
def test_a_phrase_that_changes_its_number_does_not_pass_for_it(phrase):
    assert changes_number(phrase)
    forms = (r"\boxed{\text{%s}}", "The answer is %s.", "<answer>%s</answer>", "#### %s", "So it is %s.")
    assert [form for form in forms if passes("18", form % phrase)] == []


def test_a_double_factorial_is_not_a_factorial():
    assert passes("15", r"\boxed{5!!}") and not passes("120", r"\boxed{5!!}") and passes("120", r"\boxed{5!}")
