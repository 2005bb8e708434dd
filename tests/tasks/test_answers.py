"""Which span of a completion is its answer, and in which form it was found."""

import pytest

from scalerl.core.types import Prompt
from scalerl.training.rewards import math
from scalerl.training.rewards.answers import statements
from scalerl.training.rewards.checks import WRITTEN_FORMS


def passes(answer, completion, question="q"):
    return math.verify(Prompt("0" * 16, question, (1,), answer, "math", {"prompt": question}), completion).passed


@pytest.mark.parametrize(
    ("completion", "answer", "passed"),
    [
        ("<ANSWER> 42 </ANSWER>", "42", True),
        ("[answer]42[/answer]", "42", True),
        ("<answer>x = 5</answer>", "5", True),
        (r"<answer>\boxed{5}</answer>", "5", True),
        ("<answer>The answer is 42.</answer>", "42", True),
        ("<answer>42", "42", True),
        ("<solution>3/4</solution>", "0.75", True),
        ("<answer>41</answer> 42", "42", False),
        ("<answer>1</answer> no, <answer>2</answer>", "2", True),
        ("<answer>C</answer>", "C", True),
        (r"<answer>$\frac{1}{2}$</answer>", "1/2", True),
        ("I count 7, then 9.\n<answer>12 apples</answer>", "12", True),
        (r"\boxed{5} or \boxed{6}", "5, 6", True),
        (r"$x=\boxed{1}$ and $x=\boxed{-1}$", r"\pm 1", True),
        (r"\boxed{7} or rather \boxed{8}", "7", False),
        (r"\boxed{7} hmm wait. Actually it is \boxed{8}", "8", True),
        (r"\boxed{\text{your answer}} is \boxed{9}? yes", "9", True),
        (r"\boxed{9} ... \boxed{", "9", True),
        (r"\boxed 5", "5", True),
        (r"\fbox{3/4}", "0.75", True),
        (r"\boxed{\boxed{5}}", "5", True),
        ("\\boxed{\n42\n}", "42", True),
        ("#### 72", "72", True),
        ("#### $72.00", "72", True),
        ("####  -5", "-5", True),
        ("#### 72 dollars", "72", True),
        ("#### 72\nso 71", "71", False),
        ("### Step 1\nx\n#### Step 2\nThe answer is 5.", "5", True),
        ("Final Answer: The final answer is $5$. I hope it is correct.", "5", True),
        ("**Answer:** 42", "42", True),
        (r"The answer is: \[ 42 \]", "42", True),
        ("The answer is\n$$\n42\n$$", "42", True),
        ("The answer is 42 because 6*7=42 and 10 more.", "42", True),
        ("答案：42", "42", True),
        ("所以答案是 3/4。", "3/4", True),
        (r"最终答案是：\boxed{7}", "7", True),
        ("故选：C", "C", True),
        ("答：一共有12个。", "12", True),
        ("所以，小明有15元。", "15", True),
        ("选项B", "B", True),
        ("总共花了 1,250 元", "1250", True),
        ("The correct choice is B) 12", "B", True),
        ("(B)", "B", True),
        (r"So we get \boxed{\textbf{(B)}}.", "B", True),
        (r"So we get \boxed{B. 12}.", "B", True),
        (r"So we get \boxed{\textbf{(B)}\ 12}.", "C", False),
        (r"So we get \boxed{\textbf{(C)}\ 12}.", "12", True),
        ("The correct option is (D).", "C", False),
        ("Option C is correct.", "C", True),
    ],
)
def test_the_answer_is_the_last_complete_form(completion, answer, passed):
    assert passes(answer, completion) is passed


@pytest.mark.parametrize(
    ("completion", "text", "form"),
    [
        (r"\boxed{7}, no, <answer>8</answer>", "8", "tag"),
        (r"<answer>7</answer>, no, \boxed{8}", "8", "box"),
        (r"<answer>\boxed{7}</answer>", "7", "box"),
        (r"\boxed{7}. I forgot one case. The answer is 8.", "8", "phrase"),
        (r"\boxed{7}. The answer is correct.", "7", "box"),
        ("<p>Answer:<br><b>8</b></p>", "8", "phrase"),
        ("The answer is 8.\n#### 9", "9", "hashes"),
        ("#### Step 1\nThe answer is 8. So 9", "8", "phrase"),
        (r"<think>\boxed{7}</think> So 9", " So 9", "none"),
        (r"<think>\boxed{7}", "", "none"),
        (r"\boxed{7} and then \boxed{8", "7", "box"),
    ],
)
def test_the_last_statement_counts_whatever_its_form(completion, text, form):
    assert statements(completion)[-1] == (text, form)


@pytest.mark.parametrize("part", [r"\boxed{", "<answer>", "the answer is ", "("])
def test_the_answer_of_a_long_text_is_found_in_time_proportional_to_its_length(part):
    """1 MB takes about half a second."""
    import time

    start = time.process_time()
    statements(part * (10**6 // len(part)))
    assert time.process_time() - start < 8


def test_the_reference_pasted_in_front_is_not_the_answer():
    assert not passes("42", r"42 42 The answer is 42. \boxed{42} Hence \boxed{41}")
    assert not passes("42", "<answer>42</answer> Reconsider. <answer>41</answer>")


@pytest.mark.parametrize("form", ["box", "tag", "hashes", "phrase"])
def test_only_the_form_that_the_task_asks_for_counts(form):
    completions = {"box": r"\boxed{4}", "tag": "<answer>4</answer>", "hashes": "#### 4", "phrase": "The answer is 4."}
    for name, completion in completions.items():
        prompt = Prompt("0" * 16, "q", (1,), "4", "math", {"prompt": "q", "answer_form": form})
        verdict = math.verify(prompt, completion)
        assert verdict.passed is (name == form) and verdict.form == (form if name == form else "none")
        reference = WRITTEN_FORMS.get(form, r"\boxed{{{}}}").format("4")
        assert math.verify(prompt, reference).passed


@pytest.mark.parametrize(
    ("answer", "completion", "passed"),
    [
        ("C", r"It follows that \boxed{x \le y}.\n\n**Answer: C**", True),
        ("C", "Answer: it is neither A nor B, so C", True),
        ("C", "Answer: not C, it is D", False),
        ("D", "The answer is D, not B.", True),
        ("B", "The answer is D, not B.", False),
        ("B, D", r"\boxed{\text{(B) and (D)}}", True),
        ("BD", "Answer: B", False),
        ("90 minutes", "It takes 1 hour and 30 minutes.", True),
        ("30 minutes", "It takes 1 hour and 30 minutes.", False),
        ("30 minutes", "He walks 4 miles and 30 minutes.", True),
        ("6:20 p.m.", "Answer: 6:20 a.m.", False),
        ("6:20 p.m.", "Answer: 6:20", True),
        ("12:10 AM", r"\boxed{0:10}", True),
        ("0:10", "Answer: 12:10 PM", False),
    ],
)
def test_choices_times_and_amounts_are_found_whole_in_the_last_statement_that_has_one(answer, completion, passed):
    assert passes(answer, completion) is passed
