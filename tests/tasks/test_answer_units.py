"""Units of answers: which words are a unit, and which amounts are the same."""

import pytest

from scalerl.training.rewards.equality import judge
from scalerl.training.rewards.units import Quantity, convert, split_amount


@pytest.mark.parametrize(
    ("text", "split"),
    [
        (r"5\sqrt{3} cm^2", (r"5\sqrt{3}", "centimeter**2")),
        ("1 hour 15 minutes", ("75", "minute")),
        ("6 ft 2 in", ("74", "inch")),
        ("7 boxes", ("7", "items")),
        ("7 square units", ("7", "")),
        ("3m", ("3m", "")),  # a product
        ("at most 3 m", ("at most 3 m", "")),
        ("2, 3 cm", ("2, 3 cm", "")),
        ("x + 3", ("x + 3", "")),
    ],
)
def test_an_amount_is_a_number_and_its_unit(text, split):
    assert split_amount(text) == Quantity(*split)


@pytest.mark.parametrize(
    ("of", "to"),
    [("meter", "second"), ("meter", "meter**2"), ("dollar", "euro"), ("items", "meter"), ("cent", "meter")],
)
def test_amounts_of_different_dimensions_are_not_comparable(of, to):
    assert convert("5", of, to) is None


@pytest.mark.parametrize(
    ("reference", "answer", "equal"),
    [
        ("40 minutes", r"\frac{2}{3}\text{ hours}", True),
        ("40 minutes", "40", True),
        ("40", "40 minutes", True),
        ("40 minutes", "40 seconds", False),
        ("40 minutes", r"40\%", False),
        ("40 minutes", "40 hens", False),
        ("40 hens", "40 chickens", True),  # both count things
        ("3.6 km/h", "1 m/s", True),
        (r"3\text{ m}^2", "3 m", False),
        (r"\$4", "400 cents", True),
        (r"\$4", "4 cents", False),
        (r"\$4", "€4", False),
        (r"180^\circ", r"\pi\text{ radians}", True),
        (r"\text{1 m 50 cm}", r"1.5\text{ m}", True),
        ("2米", "200厘米", True),
        ("180 cm", "1.8m", True),  # beside a unit, a letter is no factor
        ("180 cm", "180m", False),
        ("180m", "180", True),
        ("$3", "300¢", True),
        ("12 pounds", "£12", True),  # the currency has the same word
    ],
)
def test_a_unit_of_the_reference_is_part_of_the_answer(reference, answer, equal):
    assert judge(reference, answer).equal is equal
