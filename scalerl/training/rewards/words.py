r"""Words around a number: `half of 42` is 21, and `less than 42` is no number.

A phrase that changes its number is evaluated if all its words are known (`in_digits`). Any other makes the answer
unreadable (`changes_number`), so that no hedge around the reference passes.
"""

from __future__ import annotations

import re

_UNDER_TWENTY = (  # noqa: SIM905
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
WORD_VALUES = {word: value for value, word in enumerate(_UNDER_TWENTY)} | {
    word: value for value, word in zip(range(20, 100, 10), _TENS, strict=True)
}
"""Number words, and their values."""
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PARTS = {
    "half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10, "twelfth": 12, "twentieth": 20, "hundredth": 100, "thousandth": 1000,
}  # fmt: skip
"""Names of fractions, and their denominators."""
_VALUE = r"(-?[\d.]+!?|\\frac\{\d+\}\{\d+\}|\d+\^\{\d+\}|\\sqrt(?:\[\d\])?\{[^{}]*\}|\([^()]*\))"
_OPERATIONS = tuple(
    (re.compile(pattern.replace("V", _VALUE)), spelling)
    for pattern, spelling in (
        (rf"(?<![\d.])(\d+)[ -](?:{'|'.join(_PARTS)})s?\b", lambda m: rf"\frac{{{m[1]}}}{{{_PARTS[_singular(m[0])]}}}"),
        (r"^(\d+) \(\1\)$", r"\1"),
        (r"\bhalf\b", r"\\frac{1}{2}"),
        (r"(?<![\d.] )\b(?:a )?dozen\b", "12"),
        (r"V factorial\b", r"\1!"),
        (r"V squared\b|\bsquare of V", lambda m: f"{m[1] or m[2]}^{{2}}"),
        (r"V cubed\b|\bcube of V", lambda m: f"{m[1] or m[2]}^{{3}}"),
        (r"V (?:raised )?to the (?:power (?:of )?)?V(?:(?:th|st|nd|rd)?(?: power)?\b)?", r"\1^{\2}"),
        (r"\bsquare root of V", r"\\sqrt{\1}"),
        (r"\bcube root of V", r"\\sqrt[3]{\1}"),
        (r"\b(?:reciprocal|inverse) of V", r"(1/\1)"),
        (r"V and (\\frac\{\d+\}\{\d+\})", r"(\1+\2)"),
        (r"\b(?:twice|double)(?: of)? V", r"(2*\1)"),
        (r"\b(?:thrice|triple)(?: of)? V", r"(3*\1)"),
        (r"V percent of V", r"(\1/100*\2)"),
        (r"V percent$", r"\1%"),
        (r"(\\frac\{\d+\}\{\d+\}) of V", r"(\1*\2)"),
        (r"V (?:times|multiplied by) V|\bproduct of V and V", lambda m: f"({m[1] or m[3]}*{m[2] or m[4]})"),
        (r"V (?:divided by|over) V", r"(\1/\2)"),
        (r"V plus V|\bsum of V and V", lambda m: f"({m[1] or m[3]}+{m[2] or m[4]})"),
        (r"V minus V|\bdifference of V and V", lambda m: f"({m[1] or m[3]}-{m[2] or m[4]})"),
        (r"V more than V", r"(\2+\1)"),
        (r"V (?:less|fewer) than V", r"(\2-\1)"),
        (r"\b(?:minus|negative|opposite of|negative of) V", r"-\1"),
    )
)
_KNOWN = frozenset(
    {*WORD_VALUES, *_POWERS, *_PARTS, *(f"{part}s" for part in _PARTS), "halves"}
    | set(re.findall(r"[a-z]{2,}", " ".join(pattern.pattern.replace(r"\b", " ") for pattern, _ in _OPERATIONS)))
    | {"a", "an", "the", "and", "frac", "sqrt"}
)
_WORD = rf"(?<![\d.] )\b(?:{'|'.join((*WORD_VALUES, *_POWERS))})\b"
_WORDS = re.compile(rf"{_WORD}(?:(?:[\s-]+|(?<=dred|sand) and ){_WORD})*")


def _singular(text: str) -> str:
    word = re.split(r"[ -]", text)[-1]
    return word if word in _PARTS else word[:-1]


def in_digits(text: str) -> str:
    r"""Write a number in English words, and what the words do to it, as a formula.

    Examples: `three hundred and five` -> `305`; `two thirds of 12` -> `(\frac{2}{3}*12)`.
    """
    if len(text) > 100 or not re.search(r"[A-Za-z]{2}", text) or re.search(r"\\(?!frac|sqrt)", text):
        return text
    words = list(re.finditer(r"[A-Za-z]+", text))
    unknown = next((at for at, word in enumerate(words) if word[0].lower() not in _KNOWN), None)
    if unknown is not None:  # "five apples"
        text, behind = text[: words[unknown].start()], text[words[unknown].start() :]
        value = in_digits(re.sub(r"\ban? $", "", text)) if unknown else text
        return f"{value} {behind}" if value != text and re.search(r"[\d})]$", value) else text + behind
    plain = re.sub(r"\b(?:a|an) (?=[a-z])", "one ", " ".join(text.lower().split())).replace("one dozen", "dozen")
    plain = _WORDS.sub(_number, re.sub(r"\bthe (?!power|\d)", "", plain))
    before = ""
    while before != plain:
        before = plain
        for pattern, spelling in _OPERATIONS:
            plain = pattern.sub(spelling, plain)
    return text if re.search(r"(?<!\\)\b[a-z]", plain) else plain.strip()


def _number(match: re.Match[str]) -> str:
    """Return number words in digits; words that are no number, such as "one two", stay."""
    total = part = 0
    for word in re.split(r"[\s-]+", match[0].replace(" and ", " ")):
        if word == "hundred":
            part = max(part, 1) * 100
        elif word in _POWERS:
            total, part = total + max(part, 1) * 10 ** _POWERS[word], 0
        else:
            if part % 10 or (part % 100 and WORD_VALUES[word] >= 10):
                return match[0]
            part += WORD_VALUES[word]
    return str(total + part)


_COMPARED = "less|fewer|more|greater|larger|smaller|bigger|higher|lower"
_FILLED = r"(?:\s+(?:or|and|equal|equals|to|of|the|an?|number|value|for|by|exactly|about|that|from|than|be))*"
_CHANGED = re.compile(
    rf"(?<![A-Za-z\\])(?:(?:{_COMPARED})\s+than|at\s+(?:the\s+)?(?:very\s+)?(?:most|least)|above|below|beneath|under|over|beyond|within|half|double|twice|"
    r"triple|thrice|quadruple|quarters?|thirds?|root|reciprocal|inverse|negative|opposite|minus|plus|times|not|never|"
    r"neither|nor|without|but|except|excluding|besides|exceed(?:s|ing)?|up\s*to|off|away|close|near|until|other\s+than|"
    r"rather\s+than|instead\s+of|anything|everything|bounded|limited|different\s+from|outside|inside|"
    r"(?:number|integer|prime|one)\s+(?:before|after)|"
    r"(?:one|any|absolute\s+value|sum|product|difference|multiple|factor|divisor|remainder|square|cube|logarithm|percent|part|fraction|power|"
    rf"complement|digits?|factorial|successor|predecessor|neighbou?r|out|%|\d)\s+of){_FILLED}(?:[\s$(]|\\[($])*[-+]?[\d.\\]"
    rf"|\bbetween\s+\S+\s+(?:and|to)\s+[\d.\\$]|\bfrom\s+\S+\s+to\s+[\d.\\$]"
    rf"|[\d}})](?:\s+\w+){{0,2}}?\s+\(?(?:(?:{_COMPARED})\s+(?:\w+\s+)?than|or\s+(?:{_COMPARED}|so|above|below|over|under)"
    r"|at\s+(?:the\s+)?(?:very\s+)?(?:most|least)|and\s+(?:more|up|above|over|beyond|under|below|counting|change)\b|too\s+(?:many|few|much))"
    r"|\d(?:st|nd|rd|th)\s+(?:\w+\s+)?(?:prime|term|root|number|integer|multiple|digit|square|cube|element|power)\b"
    r"|[\d})][\s$]*\s(?:is|was|would\s+be|can)(?:\s+not|n't|not|\s+(?:wrong|incorrect|false|impossible))\b"
    r"|[\d})][\s$]*(?:,?\s*(?:but|though|although|except)\b|-?ish\b"
    r"|\s(?:times\s+\w|squared|cubed|doubled|tripled|halved|factorial|plus|minus|divided|multiplied|to\s+the|percent\s+of|mod(?:ulo)?|choose"
    r"|in\s+(?:binary|hex\w*|octal|base)))",
    re.IGNORECASE,
)
"""Words that change a number, next to it: before it, with words such as "or equal to" between them, or behind it."""


def changes_number(text: str, start: int = 0, end: int | None = None) -> bool:
    """Return whether words change the number next to them, as in "at most 42", "42 or more" or "5 of 42".

    Args:
        text: A text.
        start: Start of the number; the default is any number.
        end: Its end.
    """
    last = len(text) if end is None else end
    return any(match.start() < last and match.end() > start for match in _CHANGED.finditer(text))
