"""Further spellings of answers, after public bug reports of verifiers: what is found in a text, and what is equal."""

import pytest

from scalerl.core.types import Prompt
from scalerl.training.rewards import math

FOUND = [
    ("**Final Answer: 42**", "42", True),
    ('```json\n{"answer": "42"}\n```', "42", True),
    ("【答案】B", "B", True),
    ("La réponse finale est 42.", "42", True),
    ("\\boxed{x=1}\\quad\\text{or}\\quad\\boxed{x=2}", "1,2", True),
    ("\x08oxed{42}", "42", True),
    ("\\boxed{\x0crac{1}{2}}", "\\frac{1}{2}", True),
    ("\\[ \\boxed{\\begin{aligned} x &= 42 \\end{aligned}} \\]", "42", True),
    ("The answer is forty-two (42).", "42", True),
    ('{"reasoning": "3 of 6", "answer": "1/2"}', "\\frac{1}{2}", True),
    ("The answer is twelve.", "12", True),
    ("The answer is ***12***.", "12", True),
    ("The answer is <b>12</b>.", "12", True),
    ("The answer is\n\\begin{equation}\n12\n\\end{equation}", "12", True),
    ("The answer is option (C).", "C", True),
    ('<answer>{"answer": 42}</answer>', "42", True),
    ("<answer>42<answer>", "42", True),
    ("正确选项是B", "B", True),
    ("Let me verify: 2^3=8 ✓\n\n**8**", "8", True),
    ("The answer cannot be 8, it is 9.", "8", False),
    ("The solutions are $x=3$ and $x=5$.", "3, 5", True),
    ("It is 9, not 8", "9", True),
    ("The solutions are $x=3$ and $x=5$.", "5", False),
    ("The answer is 12!", "12!", True),
    ("The answer is 2**3.", "8", True),
    ("The answer is __3__.", "9", False),
    ("The answer is z^*", "z^*", True),
    ('{"answer": 3, "b": 5}', "5", False),
    ("The answer is 43, not 42.", "42", False),
]

EQUAL = [
    ("\\boxed{0{,}5}", "1/2", True),
    ("\\boxed{(0,1)}", "]0,1[", True),
    ("\\boxed{\\log_e x}", "\\ln x", True),
    ("\\boxed{{5 \\choose 2}}", "\\dbinom{5}{2}", True),
    ("\\boxed{twenty-one}", "21", True),
    ("\\boxed{8}", "eight", True),
    ("\\boxed{pi/3}", "\\frac{\\pi}{3}", True),
    ("\\boxed{x**3-3*x+2}", "x^3-3x+2", True),
    ("\\boxed{|x|>1}", "(-\\infty,-1)\\cup(1,\\infty)", True),
    ("\\boxed{4 2}", "42", False),
    ("\\boxed{\\angle A = 60^\\circ}", "60^\\circ", True),
    ("\\boxed{144\\pi\\text{ cm}^3}", "144\\pi", True),
    ("\\boxed{\\sin^{-1}\\frac13}", "\\arcsin\\frac13", True),
    ("\\boxed{17 \\text{ (seventeen)}}", "17", True),
    ("\\boxed{\\tan^{-1}2}", "\\frac{1}{\\tan 2}", False),
    ("\\boxed{144\\pi\\text{ cm}^3}", "144", False),
    ("\\boxed{1000}", "1 000", True),
    ("\\boxed{0{,}125}", "0.125", True),
    ("\\boxed{]0,1[}", "[0,1]", False),
    ("\\boxed{|x|>1}", "(-1,1)", False),
    ("\\boxed{|x-1|\\ge 2}", "(-\\infty,-1]\\cup[3,\\infty)", True),
    ("\\boxed{\\begin{cases} x=1 \\\\ y=2 \\end{cases}}", "x=1,y=2", True),
    ("\\boxed{\\begin{cases} x=2 \\\\ y=1 \\end{cases}}", "x=1,y=2", False),
    ("\\boxed{three hundred and five}", "305", True),
    ("\\boxed{two million}", "2000000", True),
    ("\\boxed{one two}", "12", False),
    ("\\boxed{x**10}", "x^{10}", True),
]


@pytest.mark.parametrize(("completion", "answer", "passed"), FOUND + EQUAL)
def test_an_answer_in_another_spelling_is_judged_as_its_author_would(completion, answer, passed):
    prompt = Prompt("0" * 16, "q", (1,), answer, "math", {"prompt": "q"})
    assert math.verify(prompt, completion).passed is passed
