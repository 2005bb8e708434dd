r"""Verifier of mathematical answers: the answer of a completion (answers.py) against the reference (equality.py).

Equality accepts `12 * 13` for 156, so it would reward a repetition of "What is 12 * 13?". If the reference is a number,
the answer must be one too, or an expression that owes nothing to the prompt (`number_stated`, `worked_out`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from scalerl.core.types import Prompt
from scalerl.training.config.run import Scoring
from scalerl.training.rewards import equality
from scalerl.training.rewards.answers import ANSWER_FORM, ANSWER_FORMS, Answer, box, statements
from scalerl.training.rewards.base import Verdict, verdict
from scalerl.training.rewards.equality import EQUATION_SIGN, judge, letters, sides
from scalerl.training.rewards.notation import LONGEST_ANSWER, lost_backslashes, normal, prose
from scalerl.training.rewards.repetition import numbers_in_prompt, repeats_expression, spelled, stands_in
from scalerl.training.rewards.units import together, unit
from scalerl.training.rewards.values import number
from scalerl.training.rewards.words import changes_number

_settings = Scoring()
"""The settings of this process (`prepare`)."""


def prepare(settings: Scoring) -> None:
    """Store the settings and load Math-Verify."""
    global _settings
    _settings = settings
    equality.prepare()


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Return whether the answer of a completion equals the reference.

    If the reference is a number, the answer must state a number, or be an equation with a side that does.
    """
    gold = reference(prompt.answer)
    if not normal(gold):
        return verdict(False, f"the reference {prompt.answer!r} is not a mathematical expression")
    only = str(prompt.columns.get(ANSWER_FORM) or "")
    found = statements(completion, only if only in ANSWER_FORMS else "")
    span, answer = found[-1], _of_kind(gold, found)
    if only in ANSWER_FORMS and span.form != only:
        return verdict(False, f"found no answer in the form {only} (data.answer_form)")._replace(form="none")
    form, answer = span.form, answer or _answer(span)
    if answer is None:
        return verdict(False, "found no mathematical expression in the answer")._replace(form=form)
    passed, by = judge(gold, answer)
    reason = f"got {answer[:500]}, expected {prompt.answer}"
    expected = numeral(gold) if passed else None
    if expected is not None:
        stated = number_stated(gold, answer, span.text, completion)
        if stated is not None:
            answer = stated
            passed = _notation(stated) == _notation(expected) or not stands_in(stated, prompt)
        else:
            passed = worked_out(answer, prompt)
        if not passed:
            reason = f"got {answer}, which repeats the prompt or is not worked out; expected the number {prompt.answer}"
    return verdict(passed, reason)._replace(answer=answer, form=form, text_only=by == "text")


@lru_cache(equality.REMEMBERED_ANSWERS)
def reference(answer: str) -> str:
    """Return a reference answer: the content of its box if it has one."""
    boxed = box(answer) if "box" in answer else None
    return boxed.text if boxed else lost_backslashes(answer)


def _of_kind(gold: str, found: Sequence[Answer]) -> str | None:
    """Return the choices that the last statement of choices has, or the last time, if the reference is of this kind.

    A formula in a box states no choice, so it does not hide one.
    """
    if letters(normal(gold)):
        return next(filter(None, (_chosen(span) for span in reversed(found))), None)
    of_day = re.findall(TIMES, found[-1].text[-_TAIL:]) if re.fullmatch(TIMES, gold.strip()) else []
    return of_day[-1] if of_day else None


TIMES = r"(?i:\b\d{1,2}(?::[0-5]\d(?:\s*[ap]\.?\s?m\b)?|\s*[ap]\.?\s?m\b))"
"""A time of day."""
_LETTERS = r"(?:\(?[A-J]\)?(?![A-Za-z])(?:(?:,\s*|\s+(?:and|or|nor)\s+)+\(?[A-J]\)?(?![A-Za-z]))*)"
_DENIED = re.compile(
    r"(?:\b(?:not|neither|nor|rul(?:es?|ed|ing)\s+out|eliminat\w+|exclud\w+|except|instead\s+of|rather\s+than|reject\w*|"
    rf"discard\w*|unlike)|n't)\s+(?:(?:the\s+)?(?:options?|choices?|answers?)\s+)?{_LETTERS}"
    rf"|{_LETTERS}\s+(?:is|are|can\s+be)\s+(?:wrong|incorrect|eliminated|ruled\s+out|excluded|not\b)"
)
"""Choices that a text says are none."""


def _chosen(span: Answer) -> str:
    """Return the letters of the choices in a statement, without those that it denies; empty for a formula."""
    text = normal(span.text) if len(span.text) <= _SHORT else ""
    if span.form == "none" or letters(text) or not re.fullmatch(r"[A-Za-z\s,.;:()'*’-]*", text):
        return letters(text)
    left = _DENIED.sub(" ", text)
    alone = re.findall(r"(?<![A-Za-z'])([B-HJ]|A(?!\s+[a-z])|I(?=[).:]|$))(?![A-Za-z'])", left)
    return "".join(sorted(set(alone)))


_SHORT = 200
"""Characters of an answer without a form that is read as a whole, if it is a number or a formula."""


def _answer(span: Answer) -> str | None:
    """Return the expression in the span of an answer: all of a box, the last expression of a sentence."""
    text = span.text
    if span.form == "box" or len(text) > LONGEST_ANSWER:
        return text if span.form != "none" else _last(text[-_TAIL:])
    bare = normal(text)
    if len(text) <= _SHORT and (span.form != "none" or _is_value(bare)):
        if span.form != "none" and _is_sentence(bare):
            return _last(text) or text
        return text
    return _last(text) or (text if len(text) <= _SHORT and span.form != "none" else None)


def _is_value(bare: str) -> bool:
    choice = re.fullmatch(r"\(?[A-J]\)?|\(?[A-J][).:] [^\n]{1,60}", bare)
    return number(bare.removesuffix("%")) is not None or choice is not None


def _is_sentence(bare: str) -> bool:
    """Return whether an answer is a sentence around an expression, not an expression or a few words."""
    words = [word for word in re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", bare) if word.lower() not in KEPT_WORDS]
    return len(words) > 1 and re.search(r"\d", bare) is not None


KEPT_WORDS = frozenset(
    (  # noqa: SIM905
        "or and pm am to by base mod bmod choose sqrt pi sin cos tan log ln over times plus minus percent dozen score "
        "pair gross infinity if for where when "
    ).split()
)
"""Words of a formula."""


_TAIL = equality.MOST_CHARACTERS
"""Characters at the end of a text in which its last expression is looked for."""


@lru_cache(equality.REMEMBERED_ANSWERS)
def _last(text: str) -> str | None:
    """Return the last expression of a text, as Math-Verify finds it."""
    bare = prose(_TAGS.sub(" ", text[-_TAIL:]))
    if not equality.is_readable(bare):
        return None
    readings = equality.read(bare)
    if not readings:
        return None
    found = str(readings[-1])
    before, _, after = bare.rpartition(found)
    before = re.split(r"[.,;:!?](?=\s)|\n", before)[-1][-_SHORT:]
    if changes_number(before + found + re.split(r"[.;:!?](?=\s|$)|\n", after)[0], len(before), len(before + found)):
        return None
    behind = re.match(r"\$?\s*([A-Za-z]+(?:[\s/^{}\d]+[A-Za-z]+){0,3}(?:\s*\^\s*\{?\d\}?)?)", after)
    words = behind[1].split() if behind else []
    units = (" ".join(words[:end]) for end in range(len(words), 0, -1))
    last = " ".join((found, *[name for name in units if unit(name)][:1]))
    parts = _PARTS.search(before)
    return parts[0] + last if parts and together(parts[0] + last) else last


_PARTS = re.compile(r"(?:\d[\d.]*\s+[A-Za-z]+(?:,|\s+and)?\s+)+$")
"""The first parts of an amount, as in "2 hours and 30 minutes"."""
_TAGS = re.compile(r"</?[A-Za-z][\w-]+>")
"""A tag such as <answer>, next to which Math-Verify does not see a number. An inequality has no such text."""

DECIMAL = r"[-+]?(?:\d+\.?\d*|\.\d+)"
FRACTION = r"[-+]?(?:\d+ +)?[-+]?\d+ ?/ ?[-+]?\d+"
SCIENTIFIC_NUMBER = rf"{DECIMAL} ?\* ?10 ?\^ ?[-+]?\d+"
NUMERAL = re.compile(rf"(?:{FRACTION}|{SCIENTIFIC_NUMBER}|{DECIMAL}) ?%?")
"""A number in digits, in the spelling of `spelled`; a fraction may be mixed."""
BEFORE, AFTER = re.compile(r"(\S+)\s*=\s*(?:\$|\\boxed\{)*\s*$"), re.compile(r"[}$\s]*=\s*(\S+)")
"""The sides of an equation of which one side was found: `156 = 12 * 13`, `\\boxed{12 * 13} = 156`."""


def numeral(text: str) -> str | None:
    r"""Return the number that a text is, in digits; None if it is another expression, or an operation.

    Numbers are 12, -1,250.5, 50%, 3/4, 2 1/2, 1.5 \times 10^3, 60^\circ and \text{7}. A fraction that is an integer,
    such as 24/4, is an operation.
    """
    bare = normal(text)
    digits = re.sub(r"^([-+]) ", r"\1", spelled(re.sub(r"\\[{}]", "", bare)))
    if len(digits) > LONGEST_ANSWER or not NUMERAL.fullmatch(digits):
        return None
    value = number(bare.removesuffix("%"))
    return None if value is None or ("/" in digits and value.value.denominator == 1) else digits


def number_stated(gold: str, answer: str, span: str, completion: str) -> str | None:
    """Return the number that an accepted answer states: itself, or a side of its equation that equals the reference.

    Args:
        gold: The reference.
        answer: The answer, which equals the reference.
        span: The span in which the answer stands.
        completion: The whole completion.

    Returns:
        The number in digits; None if there is only an expression with its value.
    """
    if (digits := numeral(answer)) is not None:
        return digits
    parts = sides(answer) if EQUATION_SIGN.search(answer) else []
    choice = re.match(r"\s*\\?\(?[A-J]\)?[.:)]?\s+(.+)", normal(answer))
    parts += [choice[1]] if choice else []
    for text in (span, completion):
        start = text.rfind(answer)
        if start >= 0:
            before, after = (
                BEFORE.search(text[max(0, start - 200) : start]),
                AFTER.match(text[start + len(answer) :][:200]),
            )
            parts = [*(match[1] for match in (before, after) if match), *parts]
    for part in reversed(parts):
        stated = numeral(part.strip(" .,;$*"))
        if stated is not None and judge(gold, stated).equal:
            return stated
    return None


def worked_out(answer: str, prompt: Prompt) -> bool:
    """Return whether an expression for a number owes nothing to the prompt, as `2^{10}` for 1024.

    With `scoring.closed_forms` it may have numbers of the prompt, but no operation that stands there.
    """
    if any(repeats_expression(text, prompt) for text in (answer, normal(answer))):
        return False
    return _settings.closed_forms or not numbers_in_prompt(normal(answer), prompt)


def _notation(number: str) -> str:
    """Return digits without plus, percent sign, leading and trailing zeros: 7.0, +7 and 7% are the same notation."""
    text = number.replace(" ", "").strip("+%")
    return f"{float(text):.15g}" if re.fullmatch(DECIMAL, text) else text
