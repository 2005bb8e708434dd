"""Currency, units and thousands separators, in references and in answers."""

import re

import pytest

from scalerl.core.types import Prompt
from scalerl.training.rewards.math import verify
from scalerl.training.rewards.notation import normal


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("5 €", "5"),
        ("£-1.50", "-1.50"),
        (r"12\,345\,678", "12345678"),
        (r"\boxed{1 000}", "1000"),
        ("80 km/h", "80"),
        # not an amount, so unchanged
        ("12 34", "12 34"),
        (r"f(1\,23)", "f(1 23)"),
        (r"1.234\,567", "1.234567"),
        ("3m^2 + 2x", "3m^2 + 2x"),
        ("euro", "euro"),
    ],
)
def test_amounts_become_bare_numbers(text, bare):
    assert normal(text) == bare


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        (r"\$6", "6"),
        (r"\$1{,}250", "1250"),
        ("$6$ dollars", r"\boxed{6 dollars}"),
        ("€6", "6"),
        (r"1\,000", "1000"),
        ("1 000", "1,000"),
        ("1000", r"\boxed{1\,000}"),
        ("32,000 dollars", r"\boxed{\$32{,}000}"),
        ("5 cm^2", "5"),
    ],
)
def test_an_amount_equals_its_number_in_every_notation(answer, given):
    prompt = Prompt("0" * 16, "", (1,), answer, "math")
    box = given if "boxed" in given else "\\boxed{" + given + "}"
    assert verify(prompt, f"<think>1</think>so {box}").passed
    assert not verify(prompt, f"<think>1</think>so {re.sub('[1356]', '7', box)}").passed
