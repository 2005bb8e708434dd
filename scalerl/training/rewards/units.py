r"""Units of answers: what stands behind a number, and whether 0.5 hours are 30 minutes.

pint knows the units of physics and of daily life; currencies and Chinese words are tables here. Any other word behind a
number, such as "apples", is the unit `ITEMS`: it counts things, and is neither a length nor money.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache, lru_cache
from itertools import product
from typing import Any, NamedTuple

from scalerl.training.rewards.values import number
from scalerl.training.rewards.words import changes_number

ITEMS = "items"
"""The unit of a number of things."""

CURRENCIES = {
    "dollar": r"(?:US|CA|AU|HK|NZ)?\\?\$|\\textdollar\b|USD\b|dollars?\b|bucks?\b|美元",
    "euro": r"€|\\(?:texteuro|euro)\b|EUR\b|euros?\b|欧元",
    "sterling": r"£|\\(?:pounds|textsterling)\b|GBP\b",
    "yuan": r"(?:CNY|RMB)\b|yuan\b|人民币|元|块",
    "yen": r"[¥￥]|\\(?:textyen|yen)\b|JPY\b|円",
    "rupee": r"₹|(?:INR|Rs\.?)(?![a-z])|rupees?\b",
    "won": r"₩|KRW\b",
}
"""Names of currencies, and their spellings."""
OWN = (
    *(f"{name} = [{name}]" for name in CURRENCIES),
    "cent = 0.01 dollar", "eurocent = 0.01 euro", "pence = 0.01 sterling = _ = penny", "paisa = 0.01 rupee = _ = paise",
)  # fmt: skip
"""Units that pint lacks, in its notation."""
EQUIVALENT = {"pound": "sterling", "yen": "yuan", "cent": "eurocent"}
"""Spellings with two meanings, and the second one: 12 pounds are money, too, and ¥ is the sign of two currencies."""
CHINESE = {
    "厘米": "cm", "毫米": "mm", "千米": "km", "公里": "km", "米": "m", "分钟": "minute", "小时": "hour", "秒": "second",
    "天": "day", "周": "week", "年": "year", "千克": "kg", "公斤": "kg", "克": "gram", "毫升": "mL", "升": "L",
    "度": "degree", "平方米": "m**2", "平方厘米": "cm**2", "立方米": "m**3", "立方厘米": "cm**3",
}  # fmt: skip
COUNTABLE_UNITS = frozenset(
    "micronit point quarter hand stone rod link chain turn shot bag technical_atmosphere count percent".split()  # noqa: SIM905
)
"""pint's names of what is a thing in a question: units, points, quarters, circles, cats (centi-at)."""
UNIT_LETTERS = frozenset("m s g h L l N J W V A K".split())  # noqa: SIM905
"""Letters that are units behind a number and a space; others are variables, and so is a letter without the space."""


class Quantity(NamedTuple):
    r"""An answer without its unit.

    Example: Quantity(text="5\sqrt{3}", unit="centimeter")
    """

    text: str
    unit: str
    """pint's name, a currency, or `ITEMS`; empty: none."""


@cache
def _registry() -> Any:
    import pint

    registry: Any = pint.UnitRegistry(non_int_type=Fraction)  # so that a mile is 5280 feet, not 5280.000000000001
    for line in OWN:
        registry.define(line)
    return registry


_NAME = r"[A-Za-zµ]{1,25}(?:\*\*-?\d)?"
_WRITTEN = re.compile(rf"{_NAME}(?:[*/]{_NAME}){{0,4}}")
_SPELLINGS = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"\\mu\s*", "µ"),
        (r"\\Omega", "ohm"),
        (r"\^\s*\\circ\s*([CF])?", lambda match: f"deg{match[1] or 'ree'}"),
        (r"degrees?\s+(?:Celsius|C)\b|°C", "degC"),
        (r"degrees?\s+(?:Fahrenheit|F)\b|°F", "degF"),
        (r"(?i)\b(?:square|sq\.?)[\s-]+([a-z]+)", r"\1**2"),
        (r"(?i)\b(?:cubic|cu\.?)[\s-]+([a-z]+)", r"\1**3"),
        (r"(?i)([a-z]+)\s+squared\b", r"\1**2"),
        (r"(?i)([a-z]+)\s+cubed\b", r"\1**3"),
        (r"\bkmh\b", "km/h"),
        (r"\s*(?:/|\bper\b|\b(?:each|an?)\b(?=\s+\w))\s*", "/"),
        (r"\s*\^\s*\{?\s*(-?\d)\s*\}?", r"**\1"),
        (r"\s*\\(?:cdot|times)\s*", "*"),
        (r"\.$", ""),
    )
)


@lru_cache(4096)
def unit(words: str) -> str:
    r"""Return the name of a unit; empty if the words are none.

    Examples: `km/h` and `kilometers per hour` -> `hour**-1*kilometer`; `square feet` -> `foot**2`; `apples` -> ``.
    """
    text = words.strip()
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    for name, spellings in CURRENCIES.items():
        text = re.sub(rf"(?<![A-Za-z])(?:{spellings})", name, text)
    if not _WRITTEN.fullmatch(text) or not UNIT_LETTERS.issuperset(
        re.findall(r"(?<![A-Za-zµ])[A-Za-z](?![A-Za-zµ])", text)
    ):
        return ""
    for spelled in dict.fromkeys((text, text.lower())):
        try:
            parts = _registry().Quantity(1, spelled).unit_items()
        except Exception:  # pint raises errors of many kinds, also of Python's tokenizer
            continue
        if not any(part.endswith(name) for name in COUNTABLE_UNITS for part, _ in parts):
            return "*".join(f"{part}**{power}" if power != 1 else part for part, power in sorted(parts))
    return ""


_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+|\d*\\frac\{\d+\}\{\d+\}|\d+ ?/ ?\d+)"
_PART = re.compile(rf"({_NUMBER})\s*([A-Za-z]+\.?)(?:\s*,|\s+and\b)?\s*")
_BEHIND = re.compile(rf"({_NUMBER})\s*\(?((?:[A-Za-z]{{2,}}[ .,'/-]*)+)\)?")
_DEGREES = re.compile(r"(?P<head>(?:.*=\s*)?[-+]?[\d.]+|.*\\frac\{\d+\}\{\d+\})\s*(?P<unit>\^\s*\\circ\s*[CF]?)")
_START = re.compile(r"(?<![A-Za-z\\µ])(?:\\mu|\\Omega|µ)?[A-Za-z]+|€|₹|\\?\$")
_CHINESE = re.compile(r"\D{0,6}?([-+]?\d[\d,.]*(?:/\d+)?%?)\s*([\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]+)")
_TIME = re.compile(r"\d\s*[ap]\.?\s?m\b", re.IGNORECASE)
LONGEST_UNIT = 60
"""Characters at the end of an answer in which its unit is looked for."""


def split_amount(text: str) -> Quantity:
    r"""Split an answer into what is measured and its unit; feet and inches, or hours and minutes, are one amount.

    Examples: `5\sqrt{3} cm^2` -> `5\sqrt{3}` in `centimeter**2`; `2 hours 30 minutes` -> `150` in `minute`.
    """
    measured = re.search(r"[^\W\d_]|[°€₹$]", text) and ("\\pi" in text or any(map(str.isdigit, text)))
    if not measured or _TIME.search(text) or changes_number(text):
        return Quantity(text, "")
    if not text.isascii() and (match := _CHINESE.fullmatch(text)):
        return Quantity(match[1], unit(CHINESE.get(match[2], match[2])) or ITEMS)
    if match := _DEGREES.fullmatch(text):
        return Quantity(match["head"], unit(match["unit"]))
    if parts := together(text):
        return parts
    separated = re.search(r",|\band\b|\bor\b", text) is not None
    for match in _START.finditer(text, max(0, len(text) - LONGEST_UNIT)) if not separated else ():
        head = text[: match.start()].rstrip()
        glued = head == text[: match.start()]
        if not head or not (head[-1] in ")]}." or head[-1].isdigit() or head.endswith("\\pi") or not glued):
            continue
        tail = text[match.start() :]
        if not (glued and len(tail) == 1) and (name := unit(tail)):
            return Quantity(head, name)
    behind = _BEHIND.fullmatch(text)
    if behind is None:
        return Quantity(text, "")
    words = behind[2].split()
    if "unit" in behind[2]:
        return Quantity(behind[1], "")
    names = (unit(" ".join(words[:end])) for end in range(len(words), 0, -1))
    return Quantity(behind[1], next(filter(None, names), ITEMS))


def together(text: str) -> Quantity | None:
    """Return the sum of `2 hours 30 minutes` in the last unit."""
    parts = list(_PART.finditer(text))
    if len(parts) < 2 or "".join(match[0] for match in parts) != text:
        return None
    names = [unit(match[2]) for match in parts]
    sizes = [convert(match[1], name, names[-1]) for match, name in zip(parts, names, strict=True) if name]
    values = [number(size.replace(",", "")) for size in sizes if size]
    if len(values) < len(parts) or len(set(names)) < len(parts) or None in values:
        return None
    return Quantity(str(sum(value.value for value in values if value)), names[-1])


def convert(text: str, of: str, to: str) -> str | None:
    r"""Return the number of an amount in another unit, as a formula; None if the units have different dimensions.

    Examples: `0.5` of hours in minutes -> `(0.5)*60/1`; `5` of seconds in meters -> None.
    """
    if ITEMS in (of, to):
        return None
    for first, second in product((of, EQUIVALENT.get(of, of)), (to, EQUIVALENT.get(to, to))):
        try:
            zero, one = (_registry().Quantity(Fraction(size), first).to(second).magnitude for size in (0, 1))
        except Exception:  # another dimension, and other errors of pint
            continue
        factor = Fraction(one - zero)
        return f"({text})*{factor.numerator}/{factor.denominator}" + (f"+({Fraction(zero)})" if zero else "")
    return None
