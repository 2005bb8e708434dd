r"""One spelling of a mathematical answer: `½`, `\dfrac12` and `$\boldsymbol{\frac{1}{2}}$` become `\frac{1}{2}`.

Each rule is one function from text to text, with two examples. `RULES` has their order. `prose` has only the rules that
are safe in a sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

from scalerl.tasks.base import in_braces

_GREEK = (  # noqa: SIM905
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi "
    "chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega "
).split()
SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": "\\times ", "·": "\\cdot ", "∙": "\\cdot ", "⋅": "\\cdot ",
    "•": "\\cdot ", "∗": "*", "÷": "\\div ", "⁄": "/", "∕": "/", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ",
    "≥": "\\ge ", "⩽": "\\le ", "⩾": "\\ge ", "≦": "\\le ", "≧": "\\ge ", "≠": "\\ne ", "±": "\\pm ", "∓": "\\mp ",
    "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "∅": "\\emptyset ", "⌀": "\\emptyset ", "ℝ": "\\mathbb{R}",
    "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}", "…": "\\ldots ", "⋯": "\\cdots ",
    "°": "^\\circ ", "º": "^\\circ ", "˚": "^\\circ ", "′": "'", "’": "'", "、": ",", "。": ".", "｡": ".", "【": "[",
    "】": "]", "〔": "(", "〕": ")", "〈": "\\langle ", "〉": "\\rangle ", "⟨": "\\langle ", "⟩": "\\rangle ",
    "٪": "%", "٫": ".", "٬": ",", "،": ",", "∶": ":", "≈": "\\approx ", "→": "\\to ", "⇒": "\\Rightarrow ",
    "∧": "\\land ", "∨": "\\lor ", "¬": "\\neg ", "∠": "\\angle ", "△": "\\triangle ", "∆": "\\Delta ", "∑": "\\sum ",
    "∫": "\\int ", "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "∖": "\\setminus ",
    "⊂": "\\subset ", "⊆": "\\subseteq ", "‰": "\\permil ", "ⅈ": "i", "ⅇ": "e", "ℯ": "e", "𝑖": "i", "𝑒": "e",
    **{letter: f"\\{name} " for letter, name in zip(
        "αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΠΣΦΨΩ",
        _GREEK, strict=True)},
}  # fmt: skip
"""Signs, and their spelling in LaTeX or ASCII."""
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣ", "0123456789+-=()nix", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₙₓ", "0123456789+-=()nx", strict=True))
_RAISED, _LOWERED = f"[{''.join(RAISED)}]+", f"[{''.join(LOWERED)}]+"
_SMALL_FRACTION = re.compile(f"({_RAISED})[⁄/]({_LOWERED})")
_ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-z]|\(|\{)?")


def unicode_signs(text: str) -> str:
    r"""Spell Unicode digits, fractions, roots, superscripts and full-width signs in ASCII.

    Examples: `３/４` -> `3/4`; `x³` -> `x^{3}`.
    """
    if text.isascii():
        return text
    text = _SMALL_FRACTION.sub(lambda m: f"\\frac{{{_spell(m[1], RAISED)}}}{{{_spell(m[2], LOWERED)}}}", text)
    text = re.sub(_RAISED, lambda m: f"^{{{_spell(m[0], RAISED)}}}", text)
    text = re.sub(_LOWERED, lambda m: f"_{{{_spell(m[0], LOWERED)}}}", text)
    text = _ROOT.sub(_root, text)
    return "".join(map(_character, text))


def _spell(text: str, spelling: dict[str, str]) -> str:
    return "".join(spelling[character] for character in text)


def _root(match: re.Match[str]) -> str:
    order, inside = {"√": "", "∛": "[3]", "∜": "[4]"}[match[1]], match[2] or ""
    return f"\\sqrt{order}{inside}" if inside in ("(", "{") else f"\\sqrt{order}{{{inside}}}" if inside else match[0]


def _character(character: str) -> str:
    if character < "\x7f":
        return character
    if character in SIGNS:
        return SIGNS[character]
    digit = unicodedata.decimal(character, None)
    if digit is not None:
        return str(digit)
    if "\uff01" <= character <= "\uff5e":
        return chr(ord(character) - 0xFEE0)
    wide = unicodedata.normalize("NFKC", character)
    if "⁄" in wide:  # ½
        above, below = wide.split("⁄")
        return f"\\frac{{{above}}}{{{below}}}" if below else character
    if "\U0001d400" <= character <= "\U0001d7ff":  # mathematical letters
        return _character(wide)
    kind = unicodedata.category(character)
    return (
        ""
        if kind == "Cf"
        else " "
        if kind in ("Zs", "Cc", "Zl", "Zp") and character not in "\u00a0\u2009\u202f"
        else character
    )


def controls(text: str) -> str:
    r"""Replace control characters and line breaks with spaces.

    Examples: `4\x002` -> `4 2`; `42\n` -> `42 `.
    """
    return re.sub(r"[\x00-\x1f\x7f]+", " ", text)


# ---------------------------------------------------------------------------------------------------------- layout

_FONT = (
    r"boldsymbol|bm|pmb|mathbf|mathsf|mathrm|mathit|mathtt|mathnormal|textbf|textit|textrm|textsf|texttt|textsc|textup|"
    r"textmd|textnormal|emph|underline|uline|ensuremath|operatorname\*?|boxed|fbox|framebox|hbox|mbox|text|"
    r"displaystyle|textstyle|bf|tt|it|rm|sf|bfseries|ttfamily|itshape|"
    r"tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge"
)
_OF_FONT = re.compile(rf"\\(?:{_FONT})(?![A-Za-z])\s*")
_COLOR = re.compile(r"\\(?:text|math|cell|row)?color(?:box)?\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}\s*")
_SPACE = re.compile(
    r"(?<!\\)\\[ ;:>~]|\\(?:q?quad|enspace|thinspace|medspace|thickspace|hfill|noindent|nonumber|newline)(?![A-Za-z])|~"
)
_FRACTION = re.compile(r"\\[dtc]?frac(?![a-z])\s*")


def braces_without_command(text: str, pattern: re.Pattern[str]) -> str:
    """Return a text without some commands; the braces of their argument go too, and what was in them stays."""
    parts = []
    while match := pattern.search(text):
        parts.append(text[: match.start()])
        text = text[match.end() :]
        inside = in_braces(text) if text.startswith("{") else None
        if inside is not None:
            before = " " if parts[-1][-1:].isalnum() and inside[:1].isalpha() else ""
            after = text[len(inside) + 2 :]
            space = " " if inside[-1:].isalpha() and after[:1].isalnum() else ""
            text = before + inside + space + after
        elif parts[-1][-1:] == "\\":
            text = " " + text
    return "".join(parts) + text


def layout(text: str) -> str:
    r"""Remove fonts, sizes, colors, spaces and delimiters.

    Examples: `\color{red}{\Large 42}` -> `42`; `$\left(1,\,2\right)$` -> `(1,2)`.
    """
    if "\\" not in text and "$" not in text and "~" not in text and "*" not in text:
        return text.strip()
    text = re.sub(r"(?<=\d)(?:\\[,!]|\{,\})(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?<=\d)\\,(?=\d)", "" if re.search(r"\.\d+\\,\d", text) else " ", text)
    text = re.sub(r"(?<!\\)\\[,!]", "", text)
    text = _SPACE.sub(" ", text)
    text = re.sub(r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", "", text)
    text = re.sub(
        r"\\(?:limits|nolimits|strut|null|hspace\*?\{[^{}]*\}|vspace\*?\{[^{}]*\}|[hv]?phantom\{[^{}]*\})", "", text
    )
    text = re.sub(r"\\mathrm\s*\{\s*([dei])\s*\}", r"\1", text)
    text = braces_without_command(_COLOR.sub(lambda _: "\\text ", text), _OF_FONT)
    text = re.sub(r"\*\*(?=\S)(.+?)(?<=\S)\*\*", r"\1", text)  # Markdown
    text = re.sub(r"(?<!\\)\\[()\[\]]|(?<!\\)\$", " ", text)
    return re.sub(r"(?:\\\\(?:\[[^\]]*\])?|\\)\s*$", "", text.strip()).strip()


def spellings(text: str) -> str:
    r"""Use one command for each sign.

    Examples: `\leq` -> `\le`; `\varnothing` -> `\emptyset`.
    """
    if "\\" in text:
        for pattern, spelling in _SPELLINGS:
            text = pattern.sub(spelling, text)
    return text


_SPELLINGS = [
    (re.compile(rf"\\(?:{old})(?![A-Za-z])"), new)
    for old, new in (
        ("leq|leqslant|leqq|lt(?=\\s*=)", r"\\le"),
        ("geq|geqslant|geqq", r"\\ge"),
        ("neq", r"\\ne"),
        ("lt", "<"),
        ("gt", ">"),
        ("varnothing|O", r"\\emptyset"),
        ("dots|cdots|dotsc|dotsb|hdots", r"\\ldots"),
        ("lbrace", r"\\{"),
        ("rbrace", r"\\}"),
        ("lbrack", "["),
        ("rbrack", "]"),
        ("lparen", "("),
        ("rparen", ")"),
        ("lvert|rvert|vert|mid", "|"),
        ("degree|textdegree", r"^\\circ"),
        ("dbinom|tbinom", r"\\binom"),
        ("arcsin|asin", r"\\arcsin"),
        ("varphi", r"\\phi"),
        ("varepsilon", r"\\epsilon"),
        ("bigcup", r"\\cup"),
        ("bigcap", r"\\cap"),
        ("infin", r"\\infty"),
        ("setminus|smallsetminus", r"\\setminus"),
        ("implies|Longrightarrow", r"\\Rightarrow"),
        ("iff", r"\\Leftrightarrow"),
        ("rightarrow|longrightarrow", r"\\to"),
    )
] + [(re.compile(r"\^\s*\{\s*\\circ\s*\}"), r"^\\circ "), (re.compile(r"\\%"), "%"), (re.compile(r"\\&"), "&")]


def fractions(text: str) -> str:
    r"""Give every fraction, root and binomial braces.

    Examples: `\dfrac12` -> `\frac{1}{2}`; `\sqrt2` -> `\sqrt{2}`.
    """
    text = _FRACTION.sub(r"\\frac", text)
    for name, arguments in (("frac", 2), ("binom", 2), ("sqrt", 1)):
        command = "\\" + name
        if command not in text:
            continue
        start = 0
        while (at := text.find(command, start)) >= 0:
            start = at + len(command)
            if text[start : start + 1].isalpha() and name != "frac" and not text[start:].lstrip()[:1].isalpha():
                continue
            text = text[:start] + _braced(text[start:], arguments)
    return text


def _braced(text: str, arguments: int) -> str:
    before = ""
    if arguments == 1 and (order := re.match(r"\s*\[[^\[\]]*\]", text)):
        before, text = order[0].strip(), text[order.end() :]
    for _ in range(arguments):
        text = text.lstrip()
        if text.startswith("{"):
            inside = in_braces(text)
            if inside is None:
                break
            before, text = f"{before}{{{inside}}}", text[len(inside) + 2 :]
        elif arguments == 1 and text.startswith("("):  # from a Unicode root
            inside = in_braces(text.replace("(", "{").replace(")", "}"))
            if inside is None:
                break
            before, text = f"{before}{{{text[1 : len(inside) + 1]}}}", text[len(inside) + 2 :]
        elif one := re.match(r"\d|[A-Za-z]|\\(?:pi|alpha|beta|theta)(?![A-Za-z])", text):
            before, text = f"{before}{{{one[0]}}}", text[one.end() :]
        else:
            break
    return before + text


# ------------------------------------------------------------------------------------------------------- amounts

CURRENCY = re.compile(
    r"(?:\\(?:pounds|texteuro|textsterling|textyen|euro|yen|textdollar)\b(?:\{\})?|[€£¥₹￥]|(?:US|CA|AU|HK|NZ)?\\?\$|"
    r"\b(?:USD|EUR|GBP|CNY|RMB|JPY|INR|Rs\.?)\b)\s*(?=[-+]?[\d.])"
)
"""A currency sign before a number."""
BEHIND = re.compile(
    r"(?<=\d)\s*(?:[€£¥₹￥]|\\(?:texteuro|textsterling|textyen|euro)\b(?:\{\})?|(?:USD|EUR|GBP|CNY|RMB|JPY|INR)\b|\\\$)"
)
"""A currency sign after a number."""
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,;:! ]|[\u00a0\u2009\u202f])\d{3})+(?!\d)")
"""A number with thin or non-breaking spaces between its thousands."""
COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d|,\d)")
"""A number with commas between its thousands."""
SPACED = re.compile(r"^[-+]?\d{1,3}(?: \d{3})+(?!\d)")
"""A number with plain spaces between its thousands, at the start of an answer; in a sentence it may be two numbers."""
SEPARATOR = re.compile(r"\\[,;:! ]|\{,\}|[,\s]")


def _joined(match: re.Match[str]) -> str:
    return SEPARATOR.sub("", match[0])


def thin_thousands(text: str) -> str:
    r"""Join thousands with thin spaces.

    Examples: `1\,000` -> `1000`; `12\u202f345` -> `12345`.
    """
    return THOUSANDS.sub(_joined, text)


def money(text: str) -> str:
    r"""Remove signs of currencies at a number.

    Examples: `€5` -> `5`; `125 USD` -> `125`.
    """
    return BEHIND.sub("", CURRENCY.sub("", text))


def thousands(text: str) -> str:
    r"""Join thousands with commas outside of brackets, and with spaces if the number stands alone.

    Examples: `1,250` -> `1250`; `(1,250)` -> `(1,250)`, a pair.
    """
    if re.search(r"[(\[]|\\\{", text) or not any(character.isdigit() for character in text):
        return text
    return COMMAS.sub(_joined, SPACED.sub(_joined, text))


SCIENTIFIC = re.compile(r"(?<![A-Za-z\d.\\])(\d++\.?\d*+|\.\d++)[eE]([+-]?\d{1,4})(?![A-Za-z\d.^])")


def e_notation(text: str) -> str:
    r"""Write numbers in E notation as powers of ten.

    Examples: `6.02e23` -> `6.02\times 10^{23}`; `1e-05` -> `1\times 10^{-5}`.
    """
    return SCIENTIFIC.sub(lambda m: f"{m[1]}\\times 10^{{{int(m[2])}}}", text)


MAGNITUDES = {
    "hundred": 2, "thousand": 3, "million": 6, "millions": 6, "billion": 9, "billions": 9, "trillion": 12,
    "quadrillion": 15, "lakh": 5, "crore": 7, "万": 4, "亿": 8, "萬": 4, "億": 8,
}  # fmt: skip
"""Words for powers of ten."""
_MAGNITUDE = re.compile(
    rf"(?<![\d.,^_/}}])(\d[\d,]*+\.?\d*+|\.\d++)\s*({'|'.join(MAGNITUDES)}|dozen)(?![A-Za-z])", re.IGNORECASE
)


def magnitudes(text: str) -> str:
    r"""Multiply a number by the magnitude word after it.

    Examples: `2.5 million` -> `2500000`; `3 dozen` -> `36`.
    """

    def product(match: re.Match[str]) -> str:
        factor = 12 if match[2].lower() == "dozen" else 10 ** MAGNITUDES[match[2].lower()]
        return (
            format((Decimal(match[1].replace(",", "")) * factor).normalize(), "f") if len(match[1]) < 40 else match[0]
        )

    return _MAGNITUDE.sub(product, text)


def mixed_numbers(text: str) -> str:
    r"""Write a mixed number as LaTeX does.

    Examples: `11 5/6` -> `11\frac{5}{6}`; `-1 1/4` -> `-1\frac{1}{4}`.
    """
    return re.sub(
        r"(?<![\d.^_/,{])(\d+)(?: +| *\+ *(?=\d+/\d+$))(\d+) ?/ ?(\d+)(?![\d.])",
        r"\1\\frac{\2}{\3}",
        re.sub(r"(?<=\d) +(?=\\frac)", "", text),
    )


_REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*\{?(\d+)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?|\((\d+)\)(?![\d^!]))"
)


def repeating_decimals(text: str) -> str:
    r"""Write a repeating decimal as the fraction that it is.

    Examples: `0.\overline{36}` -> `\frac{36}{99}`; `0.1(6)` -> `\frac{15}{90}`.
    """

    def fraction(match: re.Match[str]) -> str:
        whole, fixed = match[1] or "0", match[2]
        period = match[6] or match[3] + (match[4] or "") + (match[5] or "")
        if len(whole + fixed + period) > 100:
            return match[0]
        above = int(whole + fixed + period) - int(whole + fixed)
        return f"\\frac{{{above}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"

    return _REPEATING.sub(fraction, text) if "." in text else text


UNITS = (  # noqa: SIM905
    "km/h mph kmh m/s cm mm km ft in nm kg mg mi yd lb lbs oz ml mL kL hr hrs min mins sec secs ms kW kWh Hz kHz "
    "MHz degrees degree deg radians radian rad meters meter metres metre centimeters centimeter centimetres "
    "centimetre millimeters millimeter kilometers kilometer kilometres kilometre miles mile inches inch feet foot "
    "yards yard liters liter litres litre grams gram kilograms kilogram pounds pound ounces ounce tons ton hours "
    "hour minutes minute seconds second days day weeks week months month years year dollars dollar cents cent "
    "euros euro rupees rupee yuan units unit square cubic sq cu per percent people students apples cups cup ways "
    "times points point items pieces "
).split()
_WORD_UNIT = re.compile(
    rf"(?<=[\d}}.!)])(?:\s+|(?<=[\d}}]))(?:(?:{'|'.join(sorted(UNITS, key=len, reverse=True))})(?![A-Za-z]))"
    r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|\d)|[²³])?(?:\s*/\s*[A-Za-z]+(?:\^\{?\d\}?)?)?\.?"
)
_POWERED_UNIT = re.compile(r"(?<=\d)\s*(?:cm|mm|km|ft|in|mi|yd|m)\s*\^\s*(?:\{\s*[23]\s*\}|[23])$")
_WORDS_BEHIND = re.compile(
    r"^([-+]?(?:\d[\d,]*\.?\d*|\.\d+|\d*\\frac\{\d+\}\{\d+\}|\d+ ?/ ?\d+))\s*((?:[A-Za-z]{2,}[ .,'-]*)+)$"
)
KEPT_WORDS = frozenset(
    (  # noqa: SIM905
        "or and pm am to by base mod bmod choose sqrt pi sin cos tan log ln over times plus minus percent dozen score "
        "pair gross infinity if for where when "
    ).split()
)
"""Words after a number that change what it is."""


def units(text: str) -> str:
    r"""Remove the units of a number, and the words after a number that stands first.

    Examples: `5 cm^2` -> `5`; `3/4 cup` -> `3/4`.
    """
    if not any(character.isalpha() for character in text) or not any(character.isdigit() for character in text):
        return text
    text = re.sub(r"(?<=\d)\s*percent(?![a-z])", "%", text)
    text = _POWERED_UNIT.sub("", text)
    previous = ""
    while previous != text:
        previous, text = text, _WORD_UNIT.sub("", text)
    behind = _WORDS_BEHIND.match(text)
    if behind and not KEPT_WORDS.intersection(re.findall(r"[a-z]+", behind[2].lower())):
        return behind[1]
    return text


_CJK = re.compile(r"^\D{0,6}?([-+]?\d[\d,.]*(?:/\d+)?%?)\s*[\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]+$")


def measure_words(text: str) -> str:
    r"""Remove Chinese, Japanese and Korean words after a number.

    Examples: `125,000元` -> `125,000`; `6个苹果` -> `6`.
    """
    match = None if text.isascii() else _CJK.match(text)
    return match[1] if match else text


def degrees(text: str) -> str:
    r"""Remove the degree sign of a number that stands alone.

    Examples: `45^\circ` -> `45`; `\cos 60^\circ` is unchanged.
    """
    return re.sub(r"^([-+]?[\d.]+)\s*\^\s*\\circ\s*(?:[CF]|)$", r"\1", text.strip())


_LABEL = re.compile(
    r"^(?:[A-Za-z][A-Za-z ]*(?:answer|result|total|sum|value|number|area|volume|cost|price|solution)s?\b[A-Za-z ]*"
    r"(?:\bis\b|\bare\b|:)|[A-Za-z][A-Za-z ]+:|(?:the )?(?:final )?answer\s*=|Total:|Answer:)\s*(?=\S)",
    re.IGNORECASE,
)


def labels(text: str) -> str:
    r"""Remove words before a colon or before "is" at the start of an answer.

    Examples: `Total: 42` -> `42`; `The answer is 42` -> `42`.
    """
    return _LABEL.sub("", text, count=1)


def punctuation(text: str) -> str:
    r"""Remove punctuation at the end, and one pair of braces around the whole text.

    Examples: `42.` -> `42`; `{42}` -> `42`.
    """
    text = (
        re.sub(r"(?<!\.)[.,;:!?](?:\s*)$", "", text.strip())
        if not re.search(r"[\d)\]}]!$", text.strip())
        else text.strip()
    )
    while text.startswith("{") and in_braces(text) == text[1:-1]:
        text = text[1:-1].strip()
    return text


def numerals(text: str) -> str:
    r"""Drop a plus sign and write `.5` as `0.5`.

    Examples: `+7` -> `7`; `.5` -> `0.5`.
    """
    return re.sub(r"(?<![\d.])\.(?=\d)", "0.", re.sub(r"^\+(?=[\d.\\])", "", text))


Rule = Callable[[str], str]
RULES: tuple[Rule, ...] = (
    unicode_signs, controls, thin_thousands, money, layout, spellings, fractions, punctuation, labels, money,
    e_notation, thousands, magnitudes, mixed_numbers, repeating_decimals, measure_words, units, degrees, punctuation,
    numerals,
)  # fmt: skip
"""The rules in their order. Some run twice, because another one uncovers their signs."""
LONGEST = 10_000
"""Characters of the longest answer that is rewritten; a longer one equals a reference only as text."""


@lru_cache(8192)
def normal(text: str) -> str:
    """Return the one spelling of an answer or reference."""
    if len(text) > LONGEST:
        return text.strip()
    for rule in RULES:
        text = rule(text)
    return " ".join(text.split())


def prose(text: str) -> str:
    """Return a sentence in which amounts are bare numbers, for a search for its last expression."""
    for rule in (unicode_signs, thin_thousands, money, magnitudes, mixed_numbers):
        text = rule(text)
    return re.sub(r"(?<=\d)\s*(?=[\u3400-\u9fff])", " ", re.sub(r"(?<=[\u3400-\u9fff])(?=[-\d])", " ", text))


def squeezed(text: str) -> str:
    """Return a text for comparison as text: without spaces, and without distinction of upper and lower case."""
    return re.sub(r"\s+|\\(?![A-Za-z{}])", "", text).casefold()
