r"""The reward of `math` does not pay for repeating the question."""

from math import isnan

import pytest

from scalerl.core.types import Group, Prompt, ScoredGroup, Visit
from scalerl.training.config import Scoring, read_config
from scalerl.training.loop.metrics import answer_row
from scalerl.training.rewards import math
from scalerl.training.rewards.checks import check_rewards, repetition_notes
from scalerl.training.rewards.repetition import repeats_expression, stands_in
from scalerl.training.rewards.scoring import verifier_scorer


def prompt(text, answer, **columns):
    return Prompt("0" * 16, text, (1,), answer, "math", columns)


def passes(text, answer, completion):
    return math.verify(prompt(text, answer), completion).passed


PRODUCT = "What is 12 * 13?"


@pytest.mark.parametrize(
    ("question", "answer", "copy"),
    [
        (PRODUCT, "156", "12 * 13"),
        (PRODUCT, "156", "The answer is 12 * 13"),
        (PRODUCT, "156", r"\boxed{12×13}"),
        (PRODUCT, "156", r"\boxed{\left[12*13\right]}"),
        (PRODUCT, "156", r"\boxed{12*13, 156}"),
        (PRODUCT, "156", r"\boxed{x = 12*13}"),
        (PRODUCT, "156", "#### 12*13"),
        (PRODUCT, "156", "<think>12 * 13 = 156</think>12 * 13"),
        (PRODUCT, r"\$156", "12 * 13"),
        (r"Simplify $\frac{24}{4}$.", "6", r"\boxed{\frac{24}{4}}"),
        (r"Compute $\frac{24}{\frac{8}{2}}$.", "6", r"\boxed{\frac{24}{\frac{8}{2}}}"),
        ("What is 2^10?", "1024", "2**10"),
        ("What is 3-10?", "-7", "3-10"),
        (r"What is $\binom{5}{2}$?", "10", r"\boxed{\binom{5}{2}}"),
        (r"What is $\log_2 8$?", "3", r"\boxed{\log_2 8}"),
        ("Write 50% as a decimal.", "0.5", "50%"),
        (r"Write $1.5 \times 10^3$ out.", "1500", r"\boxed{1.5 \times 10^3}"),
        (r"Write $2\frac{1}{2}$ as a decimal.", "2.5", r"\boxed{2\frac{1}{2}}"),
    ],
)
def test_a_repetition_of_the_question_does_not_pass(question, answer, copy):
    assert not passes(question, answer, copy)
    chat = [{"role": "user", "content": question}]
    assert not math.verify(prompt(f"<|user|>{question}<|end|>", answer, prompt=chat), copy).passed


@pytest.mark.parametrize(
    ("answer", "completion"),
    [
        ("156", "156"),
        ("156", "12 * 13 = 156"),
        ("156", r"$12\times13=\boxed{156}$"),
        ("156", r"\boxed{12*13 \approx 156}"),
        ("156", r"\boxed{12*13 \Rightarrow 156}"),
        ("24", r"\boxed{2*12=4*6=24}"),
        ("156", r"\boxed{\mathbf{156}}"),
        ("156", r"\boxed{156\text{ apples}}"),
        ("156", r"\boxed{1.56 \times 10^2}"),
        ("1,250", r"\boxed{1{,}250}"),
        (r"50\%", "0.5"),
        ("2/3", r"\boxed{\tfrac23}"),
        ("2.5", r"\boxed{2\frac{1}{2}}"),
        (r"33\frac{1}{3}\%", r"\boxed{33\frac{1}{3}\%}"),
        (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
        ("24/4", r"\boxed{\frac{24}{4}}"),
        ("[2,5]", r"\boxed{[2,5]}"),
    ],
)
def test_a_number_passes_in_every_usual_form(answer, completion):
    assert passes("How many are there?", answer, completion)


@pytest.fixture
def closed_forms():
    math.prepare(Scoring(closed_forms=True))
    yield
    math.prepare(Scoring())


@pytest.mark.parametrize(
    ("question", "answer", "completion", "passed"),
    [
        ("How many bytes has a kilobyte?", "1024", "2^10", True),
        ("What is 2^10?", "1024", r"\boxed{2^{10}}", False),
        ("What is 2^10?", "1024", r"\boxed{1 \cdot 2^{10}}", False),
        ("What is 2^10?", "1024", r"\boxed{4^5}", True),
        (r"What is $\sqrt{16}$?", "4", r"\boxed{\sqrt{16}}", False),
        (PRODUCT, "156", "156", True),
    ],
)
def test_closed_forms_that_are_not_in_the_prompt_pass_under_the_option(
    closed_forms, question, answer, completion, passed
):
    assert passes(question, answer, completion) is passed


def test_all_messages_of_a_chat_are_the_prompt():
    chat = [{"role": "user", "content": "What is 2*3?"}, {"role": "assistant", "content": None}]
    assert stands_in("2 * 3", prompt("rendered", "6", prompt=chat))
    assert not stands_in("rendered", prompt("rendered", "6", prompt=chat))
    assert repeats_expression("0 + 2*3", prompt("rendered", "6", prompt=chat))


def of_task(texts, answers, task, **columns):
    return [
        Prompt(f"{n:016x}", text, (1,), answer, task, columns)
        for n, (text, answer) in enumerate(zip(texts, answers, strict=True))
    ]


def config_of(*words):
    return read_config(None, ["--model", "m", "--data", "d.jsonl", "--scoring.workers", "1", *words])


def parts_of(*words):
    config = config_of(*words)
    return config.data, config.scoring


def test_a_task_in_which_the_question_passes_as_its_answer_has_a_note(scored_here):
    config = config_of("--task", "math")
    texts = ["Expand $(x+1)^2$", "Compute 12 * 13"]
    (note,) = repetition_notes(config.data, config.scoring, of_task(texts, ["x^2+2x+1", "156"], "math"))
    assert note.startswith("math: the prompt's own text passes as the answer to 1 of 2 prompts;")
    assert repetition_notes(config.data, config.scoring, of_task(texts[1:], ["156"], "math")) == []
    assert repetition_notes(config.data, config.scoring, of_task(texts[:1], ["x^2+2x+1"], "other")) == []


def test_a_reward_that_passes_silence_has_a_note(user_code, scored_here):
    user_code(
        "repeated_rewards",
        """
        def short(prompts, completions): return [1.0 - len(text) / 100 for text in completions]

        def fails(prompts, completions): return [1.0 / len(text) / 20 for text in completions]
        """,
    )
    prompts = of_task(["a long question"] * 3, ["1"] * 3, "repeated_rewards:short")
    (note,) = check_rewards(*parts_of("--reward", "repeated_rewards:short"), prompts)
    assert note.startswith("repeated_rewards:short: an empty text passes as the answer to 3 of 3 prompts;")
    assert check_rewards(*parts_of("--reward", "repeated_rewards:short"), prompts, repetitions=False) == []
    prompts = of_task(["question"], ["1"], "repeated_rewards:fails")
    assert check_rewards(*parts_of("--reward", "repeated_rewards:fails"), prompts) == []  # 1 / 0 is no pass


def test_passes_whose_answer_stands_in_the_prompt_are_counted(user_code, scored_here):
    """Of `7`, `\\boxed{7}` and `nine` for the largest of 3, 5, 7, two pass, and both stand in the prompt."""
    scorer = verifier_scorer("math", Scoring(workers=1))
    asked = prompt("Which is the largest? 3, 5, 7", "7")
    try:
        pending = scorer.submit(asked, ["The answer is 7", r"\boxed{7}", "nine"])
        scores = pending.finish(pending.futures)
        pending = scorer.submit(prompt(PRODUCT, "156"), ["12 * 13 = 156", "12 * 13", "155"])
        more = pending.finish(pending.futures)
    finally:
        scorer.close()
    assert [score.passed for score in scores] == [True, True, False]
    assert [score.in_prompt for score in scores] == [True, True, False]
    assert [(score.passed, score.in_prompt) for score in more] == [(True, False), (False, False), (False, False)]
    group = Group(Visit(asked, 0, 0), (), 0)
    row = answer_row([ScoredGroup(group, tuple(scores)), ScoredGroup(group, tuple(more))])
    assert row.pop("answer_in_prompt") == pytest.approx(2 / 3)
    forms = {"box": 1 / 6, "tag": 0, "hashes": 0, "phrase": 1 / 6, "none": 2 / 3}
    assert row == {**{f"answer_{form}": share for form, share in forms.items()}, "answer_unread": 0}
    assert isnan(answer_row([ScoredGroup(group, tuple(more[1:]))])["answer_in_prompt"])
