r"""The answer of a completion: which span of its text is judged, for all tasks.

A statement is a box, a tag, a line after `####`, or a phrase such as "the answer is". The last one counts, whatever its
form: `\boxed{46}. Sorry, I made a mistake. Answer: 64` is 64. Of forms at the same place, such as a box in a tag, the
first of `ANSWER_FORMS` counts. Only where there is no statement does the task look for the last expression of the text.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import NamedTuple

from scalerl.training.rewards.base import MARK, in_braces, judged_text
from scalerl.training.rewards.notation import lost_backslashes
from scalerl.training.rewards.words import changes_number, in_digits

ANSWER_FORMS = ("box", "tag", "hashes", "phrase", "none")
"""The forms of an answer, in their rank at the same place."""


ANSWER_FORM = "answer_form"
"""Column of a prompt with the only form that counts (`data.answer_form`)."""


class AnswerSpan(NamedTuple):
    """A part of a text that states an answer.

    Example: Span(start=14, end=16, text="42")
    """

    start: int
    end: int
    text: str
    """The answer in it."""


class Answer(NamedTuple):
    """The answer of a completion.

    Example: Answer(text="42", form="box")
    """

    text: str
    """The span that is the answer; the whole text after the thinking if there is no form."""
    form: str
    """One of `ANSWER_FORMS`."""


def statements(completion: str, only: str = "") -> list[Answer]:
    r"""Return the last statement of each form in the order of the text, without those inside another one.

    Args:
        completion: A completion.
        only: The only form that is tried; empty: all of them.

    Examples: `\boxed{7}, no, <answer>8</answer>` -> 7 and 8; `<answer>\boxed{5}</answer>` -> 5; `So 9` -> the text.
    """
    text = lost_backslashes(_without_markup(_MARK.sub("\n", judged_text(completion))))
    found: list[tuple[AnswerSpan, str]] = []
    for form, find in FINDERS.items():
        span = find(text) if only in ("", form) else None
        inside = span and any(span.start < other.end and other.start < span.end for other, _ in found)
        if span and not inside and not (found and form == "phrase" and _is_remark(text, span)):
            found.append((span, form))
    return [Answer(span.text, form) for span, form in sorted(found)] or [Answer(text, "none")]


def _is_remark(text: str, span: AnswerSpan) -> bool:
    """Return whether a phrase beside another statement states no value, as "the answer is an integer"."""
    stated = _VALUE.match(span.text) or in_digits(span.text) != span.text
    return not stated and re.search(r"final|:", text[span.start : span.end], re.IGNORECASE) is None


def _without_markup(text: str) -> str:
    """Return a text without HTML's marks: `Answer:<br><b>17</b>` is `Answer:`, a line break and 17."""
    text = text.replace("&nbsp;", " ")
    closed = {name.lower() for name in re.findall(r"</([a-z]\w{0,9})\s*>", text, re.IGNORECASE)} & _HTML
    if closed:
        text = re.sub(rf"</?(?:{'|'.join(closed)})(?:\s[^<>\n]{{0,200}})?>", "", text, flags=re.IGNORECASE)
    return re.sub(r"<(?:br|hr)\s*/?>", "\n", text, flags=re.IGNORECASE)


_HTML = frozenset("b i u p em strong code span div center font mark small big h1 h2 h3 h4 h5 h6 li".split())  # noqa: SIM905
"""Tags that are markup if they are closed; a lone `<b>` may stand in an inequality."""
_MARK = re.compile(MARK)
"""Tokens of a chat template, also in the middle: a model may go on after its own turn."""

# ------------------------------------------------------------------------------------------------------------ boxes

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
_UNBRACED = re.compile(
    r"(?:\$|\\\()?\s*([-+]?(?:\d[\d,]*(?:\.\d+)?(?:/\d+)?|\\[A-Za-z]+\{[^{}]*\}(?:\{[^{}]*\})?|[A-Za-z](?![A-Za-z])))"
)
_EMPTY = re.compile(r"(?:[\s.…_?$]|\\(?:[cl]?dots[bc]?|quad|,|;|ldots)|\\text\s*\{\s*\}|\{\s*\})*")
_PLACEHOLDER = re.compile(
    r"(?:\\text\w*\s*\{)?\s*(?:your |the |final )*(?:answer|result)(?: here)?\s*\}?", re.IGNORECASE
)
_GAP = r"(?:[\s$]|\\q?quad\b|\\[ ,;])*"
_BETWEEN = re.compile(
    rf"{_GAP}(?:[,;]|\\text\s*\{{\s*(?:and|or)\s*\}}|\b(?:and|or)\b|和|或|,\s*(?:and|or)\b){_GAP}"
    rf"(?:\(?[A-Za-z]_?\{{?\d?\}}?\s*=\s*)?{_GAP}"
)
MOST_BOXES = 200
"""Number of boxes at the end of a text that are read."""


def box(text: str) -> AnswerSpan | None:
    """Return the last complete box, or boxes that a comma, "and" or "or" joins."""
    contents: list[tuple[int, int, str]] = []
    for match in list(_BOX.finditer(text))[-MOST_BOXES:]:
        tail = text[match.end() : match.end() + LONGEST_BOX]
        inside = in_braces(tail) if tail.startswith("{") else None
        if inside is not None:
            content, end = inside, match.end() + len(inside) + 2
        elif not tail.startswith("{") and (bare := _UNBRACED.match(tail)):
            content, end = bare[1], match.end() + bare.end()
        else:
            continue
        if contents and match.start() < contents[-1][1]:  # a box in a box
            continue
        if not _EMPTY.fullmatch(content[:1000]) and not _PLACEHOLDER.fullmatch(content[:60]):
            contents.append((match.start(), end, content))
    if not contents:
        return None
    joined = [contents[-1]]
    for previous in reversed(contents[:-1]):
        gap = text[previous[1] : joined[0][0]]
        if len(gap) > 40 or not _BETWEEN.fullmatch(gap):
            break
        joined.insert(0, previous)
    texts = list(dict.fromkeys(content.strip() for _, _, content in joined))
    return AnswerSpan(joined[0][0], joined[-1][1], ", ".join(texts) if len(texts) > 1 else joined[-1][2])


LONGEST_BOX = 1 << 17
"""Characters of the longest box."""

# ------------------------------------------------------------------------------------------------------------- tags

_TAG = re.compile(
    r"(?:<\s*(answer|final[_ ]?answer|solution|ans|final)\s*>|\[\s*(answer|final[_ ]?answer|solution)\s*\])",
    re.IGNORECASE,
)


def tag(text: str) -> AnswerSpan | None:
    """Return the last tag that is not empty, with the statement in it; one without an end extends to the text's."""
    span = tagged(text)
    inside = span and (hashes(span.text) or phrase(span.text))
    return span._replace(text=inside.text) if span and inside else span


def tagged(text: str) -> AnswerSpan | None:
    """Return the last `<answer>`, `<solution>` or `[ANSWER]` with its content as it stands; the case is free."""
    for match in reversed(list(_TAG.finditer(text))[-MOST_BOXES:]):
        name = re.escape(match[1] or match[2])
        ending = re.compile(rf"<\s*/?\s*{name}\s*>" if match[1] else rf"\[\s*/?\s*{name}\s*\]", re.IGNORECASE)
        end = ending.search(text, match.end())
        content = text[match.end() : end.start() if end else len(text)]
        if (
            content.strip()
            and not _EMPTY.fullmatch(content.strip()[:1000])
            and not _PLACEHOLDER.fullmatch(content.strip()[:60])
        ):
            return AnswerSpan(match.start(), match.end() + len(content), content)
    return None


# ----------------------------------------------------------------------------------------------------------- hashes

_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
_HEADING = re.compile(
    r"\**\s*(?:\d+[.):]\s+[A-Za-z*]|(?:step|part|case|solution|problem|question|method|answer|final)\b)", re.IGNORECASE
)
_VALUE = re.compile(r"[*\s]*(?:\\?\$|[€£¥]|\\[A-Za-z(\[]|[-+−(\[{.\d]|[A-Zb-z](?![A-Za-z]))")


def hashes(text: str) -> AnswerSpan | None:
    """Return the line after the last `####`, unless it is a heading."""
    for match in reversed(list(_HASHES.finditer(text))[-MOST_BOXES:]):
        line = match[1].strip()
        if not line or _HEADING.match(line):
            continue
        if (_VALUE.match(line) and len(line) < 200) or not text[match.end() :].strip():
            return AnswerSpan(match.start(), match.end(), line)
    return None


# ---------------------------------------------------------------------------------------------------------- phrases

_PHRASE = re.compile(
    r"(?:\b(?:(?:final|correct|right|best)\s+)?(?:answer|option|choice)s?\b"
    r"(?:\s+(?:to\s+(?:the|this)\s+(?:question|problem)|of\s+the\s+(?:question|problem)|here|choice|option))?\s*(?:\}|\*\*)?\s*"
    r"(?:(?:is|are|=|should\s+be|must\s+be|will\s+be|would\s+be)(?!\s+(?:not|in|to|the\s+same)\b)\s*(?:therefore|thus|then|simply|given\s+by)?\s*:?|:)"
    r"|(?:答案|最终答案|结果|答)\s*(?:是|为|應為|应为|:|：)+\s*[:：]?|(?:故|所以|因此|应)?选(?:择|项)?\s*(?:是|为)?\s*[:：]?\s*(?=[（(]?[A-J])"
    r"|【(?:答案|解答)】\s*[:：]?|答え(?:は|:|：)|정답(?:은|:)"
    r"|\b(?:respuesta|réponse|antwort|risposta|resposta)\b\s*(?:final\w*)?\s*(?:(?:est|es|ist|è|é)\b|:)"
    r"|ответ\s*[:—-])",
    re.IGNORECASE,
)
_OPTION = re.compile(
    r"(?i:\boption|\bchoice|\bchoose|\bselect|\btherefore,?|\bthus,?|\bhence,?|\bso,?)\s+(\(?[A-J]\)?)"
    r"(?=\s+is\s+(?:the\s+)?(?:correct|right|answer)|[.\s]*$)"
    r"|(?<![A-Za-z])(\(?[A-J]\)?)\s+is\s+(?:the\s+)?(?:correct|right|best)\b(?=\s+(?:answer|option|choice)|[.\s]*$)",
)
_SEVERAL = re.compile(r"\b(?:solutions|roots|values|answers)\s+(?:of\s+[^.\n]{1,60}\s+)?are\s*:?", re.IGNORECASE)
_OPENERS = {"$$": "$$", "\\[": "\\]", "\\(": "\\)"} | {
    f"\\begin{{{name}}}": f"\\end{{{name}}}" for name in ("equation", "equation*", "align", "align*", "gather*")
}
_DOLLARS = re.compile(r"\$(?=[^\s$])([^$\n]*[^\s$\\])\$(?!\d)")
_SENTENCE_END = re.compile(r"\n|。|；|(?<!\d)\.(?=\s|$)|(?<=\d)\.(?=\s|$)|;\s|[!?](?=\s)(?!\s*=)")
_CLAUSE = re.compile(
    r"\s*(?:,?\s+(?:(?<!\bis )not(?!\s+\(?[A-J]\b)|rather\s+than|instead\s+of|because|since|which|as\s(?!many|much)"
    r"|so\s(?!\(?[A-J]\b)|after|when|where|with)\b"
    r"|\s+\((?![A-J]\)|or\s)|，)"
)


def phrase(text: str) -> AnswerSpan | None:
    """Return the last "the answer is", "答案是" or a phrase like it, with what follows to the end of its sentence."""
    fields = [AnswerSpan(match.start(), match.end(), _of_json(match[2])) for match in _FIELD.finditer(text)][-1:]
    for match in reversed(list(_PHRASE.finditer(text))[-MOST_BOXES:]):
        if fields and fields[0].end > match.start():
            break
        if _OTHER.search(text[max(0, match.start() - LOOKBACK_CHARACTERS) : match.start()]):
            continue
        tail = text[match.end() : match.end() + LONGEST_PHRASE]
        tail = _EMPHASIS.sub("", tail).lstrip(" \t\n*:：}_`")
        option = _OPTION_WORD.match(tail)
        span = _EMPHASIS_END.sub("", _span(tail[option.end() :] if option else tail))
        if span.strip(" .*_`") and not _EMPTY.fullmatch(span.strip()) and not _COMMENT.match(span):
            return AnswerSpan(match.start(), match.end() + len(span), span)
    if fields:
        return fields[0]
    for option in reversed(list(_OPTION.finditer(text))):
        return AnswerSpan(option.start(), option.end(), option[1] or option[2])
    for several in reversed(list(_SEVERAL.finditer(text))):
        span = _span(text[several.end() :][:LONGEST_PHRASE].lstrip())
        listed = span.count("=") > 1 or re.search(r"\d[\s$]*(?:,|and|or)[\s$]*-?\d", span)
        return AnswerSpan(several.start(), several.end() + len(span), span) if listed else None
    return None


_OTHER = re.compile(r"\b(?:wrong|incorrect|mistaken|false|previous|initial|earlier|original|other|another)\s+$", re.I)
"""What makes an answer another one than that of the text, as in "a wrong answer is 8"."""
LOOKBACK_CHARACTERS = 20
"""Characters before a phrase in which such a word is looked for."""
_COMMENT = re.compile(
    r"(?:\w+ly\s+)?(?:correct|right|wrong|incorrect|valid|invalid|verified|checked|confirmed|consistent|reasonable|clear|"
    r"unique|obvious|as follows|found|obtained|based|because|expressed|rounded|supposed|expected)\b",
    re.IGNORECASE,
)
"""What a phrase says of an answer that stands elsewhere."""
_FIELD = re.compile(
    r"""["']((?:final[_ ]?)?answer)["']\s*:\s*("(?:[^"\\\n]|\\.){1,2000}"|'[^'\n]{1,2000}'|[-+.\deE]{1,400})""",
    re.IGNORECASE,
)
"""An answer as a field of a JSON object."""
_EMPHASIS = re.compile(r"(?<![\w)\]}])\*\*|\*\*(?![\w(\[{\\])(?:[!?](?=\s|$))?")
"""Markdown's marks before or behind a word, not a power such as 2**3; an exclamation mark behind is no factorial."""
_OPTION_WORD = re.compile(r"(?:option|choice)\s+(?=\(?[A-J](?![A-Za-z]))", re.IGNORECASE)
_EMPHASIS_END = re.compile(r"(?<![\^\\])[*_`]+$")


def _of_json(value: str) -> str:
    """Return the text of a JSON value; one whose backslashes are not escaped stays as it is."""
    if value[:1] == '"':
        with suppress(ValueError):
            return str(json.loads(value))
    return value.strip("\"'")


LONGEST_PHRASE = 2000
"""Characters of the longest answer after a phrase."""


def _span(text: str) -> str:
    for opener, closer in _OPENERS.items():
        if text.startswith(opener) and (end := text.find(closer, len(opener))) > 0:
            return text[len(opener) : end]
    ending = _SENTENCE_END.search(text)
    sentence = text[: ending.start()] if ending else text
    formulas: list[str] = _DOLLARS.findall(sentence)
    if formulas and not changes_number(sentence):
        outside = _DOLLARS.sub(" ", sentence)
        if re.fullmatch(r"[\s,.;*]*(?:(?:and|or)[\s,]*)*[\s.*]*", outside) or sentence.startswith("$") is False:
            return ", ".join(formulas) if len(formulas) > 1 and sentence.startswith("$") else formulas[-1]
        if re.match(r"\$[^$]*\$\s*(?:[A-Za-z]+\s*)?$", sentence.strip(" .*")):
            return sentence.replace("$", " ")
        return formulas[0]
    clause = _CLAUSE.search(sentence)
    return sentence[: clause.start()] if clause and clause.start() else sentence


FINDERS = {"box": box, "tag": tag, "hashes": hashes, "phrase": phrase}
"""Functions by form: text after the thinking -> the answer, or None."""
