"""Which answers are equal to a reference: one table per rule, with right and wrong answers."""

import inspect
import re

import pytest

from scalerl.core.types import Prompt
from scalerl.training.rewards import equality, math, notation
from scalerl.training.rewards.equality import judge

TABLES = {
    "unicode": [
        (r"\boxed{1½}", "3/2", True),
        (r"\boxed{−5}", "-5", True),
        (r"\boxed{２√３}", r"2\sqrt{3}", True),
        (r"\boxed{∞}", r"\infty", True),
        (r"\boxed{３．５}", "3.5", True),
        (r"\boxed{｛1，2｝}", r"\{1,2\}", True),
        (r"\boxed{x₁}", "x_1", True),
        (r"\boxed{2⁻¹}", "1/2", True),
        (r"\boxed{४२}", "42", True),
        (r"\boxed{90º}", "90", True),
        (r"\boxed{[2，5)}", "[2,5)", True),
        (r"\boxed{50％}", r"50\%", True),
        (r"\boxed{x ≤ 3}", r"x \le 3", True),
        (r"\boxed{∛8}", "2", True),
        (r"\boxed{±3}", r"\pm 3", True),
        (r"\boxed{x³}", "x^2", False),
    ],
    "mixed": [
        (r"\boxed{2 1/2}", "2.5", True),
        (r"\boxed{-1 1/2}", "-3/2", True),
        (r"\boxed{2\ \frac{1}{2}}", "5/2", True),
        (r"\boxed{4 10/13}", "10", False),
        ("The answer is 2 1/2.", "1/2", False),
        (r"\boxed{2 1/2}", "21/2", False),
        ("The answer is 5/2.", "2 1/2", True),
    ],
    "E": [
        (r"\boxed{1e-5}", "0.00001", True),
        (r"\boxed{1.5\cdot 10^{3}}", "1500", True),
        (r"\boxed{0.00001}", "1e-05", True),
        (r"\boxed{10000000000000000}", "1e+16", True),
        (r"\boxed{1e+16}", "10^{16}", True),
        (r"\boxed{6e23}", "6e22", False),
    ],
    "tiny": [
        (r"\boxed{1e-7}", "2e-7", False),
        (r"\boxed{0.0000001}", "0", False),
        (r"\boxed{\frac{1}{10!}}", r"\frac{1}{11!}", False),
        (r"\boxed{\frac{1}{2^{10}}}", r"\frac{1}{1024}", True),
        (r"\boxed{0.333333}", "1/3", True),
        (r"\boxed{0.33}", "1/3", False),
        (r"\boxed{0}", r"\frac{1}{100!}", False),
    ],
    "magnitude": [
        (r"\boxed{2.5 \text{ million}}", "2,500,000", True),
        (r"\boxed{\$3 \text{ billion}}", "3000000000", True),
        (r"\boxed{5 thousand}", "5", False),
        (r"\boxed{2.5}", "2.5 million", False),
        (r"\boxed{7 dozen}", "7", False),
        (r"\boxed{7 dozen}", "84", True),
    ],
    "intervals": [
        (r"\boxed{(-\infty, 3]}", r"x \le 3", True),
        (r"\boxed{-1<x<1}", "(-1,1)", True),
        (r"\boxed{x<3}", r"(-\infty,3]", False),
        (r"\boxed{[2,5]}", r"2\le x\le 5", True),
        (r"\boxed{(-\infty,2)\cup(2,\infty)}", r"x \neq 2", True),
        (r"\boxed{\{x \mid x > 2\}}", r"(2,\infty)", True),
        (r"\boxed{(2,\infty)\cup(-\infty,-1)}", r"(-\infty,-1)\cup(2,\infty)", True),
        (r"\boxed{x > 2 \text{ or } x < -1}", r"(-\infty,-1)\cup(2,\infty)", True),
        (r"\boxed{x=5}", "x>5", False),
        (r"\boxed{x \leq 5}", "5", False),
        (r"\boxed{<5}", "5", False),
        (r"\boxed{[1,\sqrt{2}]}", r"1 \le x \le \sqrt2", True),
        (r"\boxed{2<y<5}", "[2,5]", False),
    ],
    "layout": [
        (r"\boxed{\boldsymbol{42}}", "42", True),
        (r"\boxed{\textcolor{blue}{42}}", "42", True),
        (r"\boxed{\color{blue}42}", "42", True),
        (r"\boxed{\displaystyle\frac{1}{2}}", "1/2", True),
        (r"\boxed{\text{Answer: } 42}", "42", True),
        (r"\boxed{\text{Area} = 42}", "42", True),
        (r"\boxed{\text{The total is } 42}", "42", True),
        (r"\boxed{17 \bmod 5}", "2", True),
        (r"\boxed{42\text{.}}", "42", True),
        (r"\boxed{42;}", "42", True),
    ],
    "units": [
        (r"\boxed{42 \text{ cm}^2}", "42", True),
        (r"\boxed{42\text{ square units}}", "42", True),
        (r"\boxed{42 USD}", "42", True),
        (r"\boxed{18 dollars}", r"\$18", True),
        (r"\boxed{42}", r"42 \text{ cm}", True),
        (r"\boxed{10 cm and 20 cm}", r"10 \text{ cm and } 20 \text{ cm}", True),
        (r"\boxed{42 km/h}", "42", True),
        (r"\boxed{25 students}", "25", True),
        (r"The price is \$12.50.", "12.5", True),
        ("She pays USD 12.", "12", True),
        (r"\boxed{£12}", "12", True),
        (r"\boxed{12 cm}", "13 cm", False),
    ],
    "percent": [
        (r"\boxed{50\%}", "0.5", True),
        (r"\boxed{50}", r"50\%", True),
        (r"\boxed{50 percent}", r"50\%", True),
        (r"\boxed{\frac{1}{2}\%}", r"\frac{1}{2}", False),
        (r"\boxed{50\%}", "5", False),
        (r"\boxed{33\frac13\%}", r"\frac{1}{3}", True),
    ],
    "repeating": [
        (r"\boxed{0.\overline{3}}", "1/3", True),
        (r"\boxed{\frac{1}{6}}", r"0.1\overline{6}", True),
        (r"\boxed{0.(3)}", "1/3", True),
        (r"\boxed{0.36}", r"0.\overline{36}", False),
        (r"\boxed{0.\dot{3}}", r"\frac13", True),
        (r"\boxed{2.1\overline{6}}", "13/6", True),
        (r"\boxed{0.\dot{3}\dot{6}}", "4/11", True),
    ],
    "sets, bases": [
        (r"\boxed{\{3,8\}}", "(3,8)", False),
        (r"\boxed{(8,3)}", "(3,8)", False),
        (r"\boxed{\{8,3\}}", r"\{3,8\}", True),
        (r"\boxed{8,3}", "3,8", True),
        (r"\boxed{(3,8,9)}", "(3,8)", False),
        (r"\boxed{\left\{1,2,3\right\}}", r"\{3,2,1\}", True),
        (r"\boxed{1}", "1,2", False),
        (r"\boxed{102_3}", "102_4", False),
        (r"\boxed{(102)_3}", "102_3", True),
        (r"\boxed{1010_{\text{two}}}", "1010_2", True),
        (r"\boxed{FF_{16}}", "ff_{16}", True),
    ],
    "pm": [
        (r"\boxed{\pm 3}", "3,-3", True),
        (r"\boxed{3,-3}", r"\pm3", True),
        (r"\boxed{3}", r"\pm 3", False),
        (r"\boxed{\pm 3}", "3", False),
        (r"\boxed{x=3 \text{ or } x=-3}", "-3,3", True),
        (r"\boxed{1\pm\sqrt{2}}", r"1+\sqrt2, 1-\sqrt2", True),
    ],
    "dots": [
        (r"\boxed{1, 4, 9, \ldots, n^2}", r"1, 8, 27, \ldots, n^2", False),
        (r"\boxed{1, 2, \dots, n}", r"1,2,\ldots,n", True),
        (r"\boxed{n^2}", r"1+3+\cdots+(2n-1)", True),
        (r"\boxed{n^2}", r"1+2+\cdots+n", False),
        (r"\boxed{1+2+\ldots+n}", "n", False),
        (r"\boxed{2^n}", r"1,2,4,\ldots,2^n", False),
    ],
    "derivatives": [
        (r"\boxed{\frac{y}{x}}", r"\frac{dy}{dx}", False),
        (r"\boxed{\frac{dy}{dx}=2x}", r"\frac{dy}{dx} = 2x", True),
        (r"\boxed{f'(x)=2x+1}", "f'(x)=1+2x", True),
        (r"\boxed{y' = 2x}", "2x", True),
        (r"\boxed{y'=3x}", "y'=2x", False),
        (r"\boxed{f(x)}", "f'(x)", False),
    ],
    "other": [
        (r"\boxed{\emptyset}", r"\varnothing", True),
        (r"\boxed{\sin 30^\circ}", r"\frac12", True),
        (r"\boxed{2i}", r"\sqrt{-4}", True),
        (r"\boxed{e^2}", r"\mathrm{e}^2", True),
        (r"\boxed{42}", "$$42$$", True),
        (r"\boxed{42}", r"\boxed{42}", True),
        (r"\boxed{12345678}", r"1.2345678\times10^7", True),
        (r"\boxed{A\cup B}", r"B \cup A", True),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", True),
        (r"\boxed{x+1}", "x+2", False),
        (r"\boxed{\text{yes}}", "Yes", True),
        (r"\boxed{\text{east}}", "seat", False),
        (r"\boxed{5:30 PM}", r"5:30 \text{ PM}", True),
        (r"\boxed{5:30 AM}", "5:30 PM", False),
        (r"\boxed{2x+3}", "y=2x+3", True),
        (r"\boxed{\frac{1}{x+1}}", "(x+1)^{-1}", True),
        (r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix} 1 \\ 3 \end{pmatrix}", False),
        (r"\boxed{\begin{pmatrix}0.5\\2\end{pmatrix}}", r"\begin{pmatrix} \frac{1}{2} \\ 2 \end{pmatrix}", True),
        (r"\boxed{ab}", "a+b", False),
        (r"\boxed{n=5}", "5", True),
        (r"\boxed{x=5}", "y=6", False),
        (r"\boxed{\log_{2} 8}", "3", True),
        (r"\boxed{120^\circ}", "120", True),
        (r"\boxed{2\pi}", "6.283185", True),
        (r"\boxed{1{,}234}", "1234", True),
        (r"\boxed{(1,250)}", "1250", False),
        (r"\boxed{7, 8}", "7 and 8", True),
        (r"\boxed{x \equiv 2 \pmod 5}", r"x\equiv 2\pmod{5}", True),
        (r"\boxed{42 or 43}", "42", False),
        ("no idea 42", "42", True),
        ("", "5", False),
    ],
}


@pytest.mark.parametrize(
    ("completion", "answer", "passed"),
    [pytest.param(*row, id=f"{name}-{number}") for name, rows in TABLES.items() for number, row in enumerate(rows)],
)
def test_an_answer_is_judged_as_its_author_would(completion, answer, passed):
    prompt = Prompt("0" * 16, "q", (1,), answer, "math", {"prompt": "q"})
    assert math.verify(prompt, completion).passed is passed


EXAMPLE = re.compile(r"`([^`]*)` -> `([^`]*)`|`([^`]*)` is unchanged")


@pytest.mark.parametrize("rule", dict.fromkeys(notation.NOTATION_RULES), ids=lambda rule: rule.__name__)
def test_the_examples_of_a_rule_hold(rule):
    examples = EXAMPLE.findall(inspect.getdoc(rule))
    assert len(examples) == 2
    for before, after, unchanged in examples:
        before = before.replace("\\n", "\n").replace("\\x00", "\0").replace("\\u202f", "\u202f")
        before = before.replace("\\x0c", "\x0c").replace("\\x08", "\x08")
        assert rule(before or unchanged) == (after or unchanged)


@pytest.mark.parametrize("rule", equality.EQUALITY_RULES, ids=lambda rule: rule.__name__)
def test_every_rule_of_equality_has_two_examples(rule):
    text = inspect.getdoc(rule).partition("Examples: ")[2]
    assert len(re.split(r"; (?!y)", text.strip())) >= 2


def test_what_nothing_can_read_is_compared_as_text():
    assert judge(r"\clubsuit\heartsuit", r"\clubsuit \heartsuit").equal
    assert judge("No solution exists", "no solution exists") == (True, "same_text")
    assert judge("No solution exists", "one solution exists") == (False, "text")


@pytest.mark.parametrize(
    "answer",
    [
        "{" * 10_000 + "42" + "}" * 10_000,
        r"\frac{1}{" * 900 + "2" + "}" * 900,
        r"\text{" * 1_500 + "5" + "}" * 1_500,
        "9^{9^{9^{9}}}",
        "99999999!",
        "1," * 4_000,
        "9" * 100_000,
        "5 " + "abc " * 2_000 + "!",
        "4\0",
    ],
    ids=range(9),
)
def test_no_answer_stops_the_comparison(answer):
    assert not judge("43", answer).equal
