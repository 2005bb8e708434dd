r"""Removal of currency signs, thousands separators and units that Math-Verify misreads.

Math-Verify reads the number in `\$6`, `6 \text{ dollars}`, `1,000` and `5 cm`. It finds no number in `€6`, and reads
`6 dollars` as a product of letters and `1\,000` as one times zero.
"""

from __future__ import annotations

import re

CURRENCY = re.compile(r"(?:\\(?:pounds|texteuro|textsterling|textyen|euro|yen)\b(?:\{\})?|[€£¥₹])\s*(?=[-+]?[\d.])")
"""A currency sign before a number."""
BEHIND = re.compile(r"(?<=\d)\s*(?:[€£¥₹]|\\(?:texteuro|textsterling|textyen|euro)\b(?:\{\})?)")
"""A currency sign after a number."""
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,;:! ]|[\u00a0\u2009\u202f])\d{3})+(?!\d)")
"""A number with thin or non-breaking spaces between its thousands."""
SPACED = re.compile(r"\d{1,3}(?: \d{3})+(?!\d)")
"""A number with plain spaces between its thousands; in a sentence this may be two numbers."""
BOXED = re.compile(r"(?<=\\boxed\{)\d{1,3}(?: \d{3})+(?=\})")
"""A number with plain spaces alone in a box; there it is one number."""
SEPARATOR = re.compile(r"\\[,;:! ]|\s")
UNIT = re.compile(
    r"(?<=\d)\s*(?:(?:dollars?|euros?|rupees?)\b|(?:km/h|mph)\b|(?:cm|mm|km|ft)(?:\^(?:\{[23]\}|[23])|[²³]))"
)
"""A unit after a number. Single letters are excluded: m may be a variable."""


def plain(text: str) -> str:
    r"""Return a text with its amounts as bare numbers: `€1\,000` and `1000 dollars` become 1000."""
    text = BOXED.sub(_joined, THOUSANDS.sub(_joined, text))
    return UNIT.sub("", BEHIND.sub("", CURRENCY.sub("", text)))


def plain_reference(answer: str) -> str:
    """Return a reference answer with its amounts as bare numbers; it may begin with `12 000`."""
    answer = answer.strip()
    spaced = SPACED.match(answer.lstrip("$-+\\"))
    return plain(answer.replace(spaced[0], _joined(spaced), 1) if spaced else answer)


def _joined(found: re.Match[str]) -> str:
    return SEPARATOR.sub("", found[0])
