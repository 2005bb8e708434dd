r"""One spelling of a mathematical answer: `½`, `\dfrac12` and `$\boldsymbol{\frac{1}{2}}$` become `\frac{1}{2}`.

Each rule is one function from text to text, with two examples. `NOTATION_RULES` has their order. `prose` has only the
rules that are safe in a sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache

from scalerl.training.rewards.base import in_braces
from scalerl.training.rewards.units import CURRENCIES, Quantity, split_amount
from scalerl.training.rewards.words import in_digits

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
    "⊂": "\\subset ", "⊆": "\\subseteq ", "¢": " cents", "‰": "\\permil ",
    "✓": "", "✔": "", "✅": "", "\u00a0": "\\ ", "\u2009": "\\ ", "\u202f": "\\ ",
    "ⅈ": "i", "ⅇ": "e", "ℯ": "e", "𝑖": "i", "𝑒": "e",
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
    return "" if kind == "Cf" else " " if kind in ("Zs", "Cc", "Zl", "Zp") else character


_LOST = {
    "\x08": ("b", "oxed|inom|eta|ar|egin|igl|igr|ig|oldsymbol|mod|ullet"),
    "\x0c": ("f", "rac|box|orall"),
    "\t": ("t", "ext|frac|imes|heta|extbf|extit|riangle|ilde"),
    "\x07": ("a", "lpha|pprox|ngle|rcsin|rccos|rctan"),
    "\x0b": ("v", "ec|ert|arnothing|arphi|dots"),
}
_LOST_BACKSLASH = re.compile("|".join(f"{character}(?:{names})(?![a-z])" for character, (_, names) in _LOST.items()))


def lost_backslashes(text: str) -> str:
    r"""Restore the commands whose backslash and first letter were read as an escape of JSON or Python.

    Examples: `\x0crac{1}{2}` -> `\frac{1}{2}`; `\x08oxed{5}` -> `\boxed{5}`.
    """
    return _LOST_BACKSLASH.sub(lambda match: f"\\{_LOST[match[0][0]][0]}{match[0][1:]}", text)


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


_ENVIRONMENT = re.compile(
    r"\\begin\{(aligned|align\*?|gathered|gather\*?|split|equation\*?|cases)\}(.*?)\\end\{\1\}", re.DOTALL
)


_COLUMN = re.compile(
    r"\\begin\{([pbB]?matrix|array)\}(?:\{[lcr| ]*\})?([^&]*?\\\\[^&]*?)(?:\\\\)?\s*\\end\{\1\}", re.DOTALL
)
"""A vector as a column: a matrix without `&`."""


def _column(match: re.Match[str]) -> str:
    return "(" + re.sub(r"\s*\\\\\s*", ",", match[2].strip()) + ")"


THIN = re.compile(r"(?<=\d)(?:,?\\[,;:! ])\s*(?=\d{3}(?!\d))")
"""A thin space between thousands."""


def _rows(match: re.Match[str]) -> str:
    """Return the only row of an environment of equations, or the rows of a system of named values as a list."""
    rows = [row.replace("&", "").strip(" ,;") for row in match[2].split("\\\\") if row.strip()]
    if len(rows) == 1:
        return rows[0]
    values = all(re.fullmatch(r"[A-Za-z]\s*=\s*[^=&]+", row) for row in rows)
    return ", ".join(rows) if values and match[1] == "cases" else match[0]


def layout(text: str) -> str:
    r"""Remove fonts, sizes, colors, spaces and delimiters.

    Examples: `\color{red}{\Large 42}` -> `42`; `$\left(1,\,2\right)$` -> `(1,2)`.
    """
    if "\\" not in text and "$" not in text and not re.search(r"[~*`<]|\{,\}", text):
        return text.strip()
    text = _ENVIRONMENT.sub(_rows, text.strip().strip("`"))
    text = _COLUMN.sub(_column, text)
    text = THIN.sub("", re.sub(r"(?<=\d)(?<!(?<!\d)0)\{,\}(?=\d{3}(?!\d))", "", text))
    text = re.sub(r"(?<=\d)\{,\}(?=\d)", ".", text)
    text = re.sub(r"(?<=\d)\\,(?=\d)", "" if re.search(r"\.\d+\\,\d", text) else " ", text)
    text = re.sub(r"(?<!\\)\\[,!]", "", text)
    text = _SPACE.sub(" ", text)
    text = re.sub(r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", "", text)
    text = re.sub(
        r"\\(?:limits|nolimits|strut|null|hspace\*?\{[^{}]*\}|vspace\*?\{[^{}]*\}|[hv]?phantom\{[^{}]*\})", "", text
    )
    text = re.sub(r"\\mathrm\s*\{\s*([dei])\s*\}", r"\1", text)
    text = braces_without_command(_COLOR.sub(lambda _: "\\text ", text), _OF_FONT)
    text = re.sub(r"(?<!\w)\*\*(?=\S)(.+?)(?<=\S)\*\*(?!\w)", r"\1", text)  # Markdown
    text = re.sub(r"(?<!\\)\\[()\[\]]|(?<!\\)\$", " ", text)
    text = re.sub(r"(?:\\langle|^\s*<)([^<>\\]*,(?:[^<>]|\\[a-z]+)*?)(?:\\rangle|>\s*$)", r"(\1)", text)
    return re.sub(r"(?:\\\\(?:\[[^\]]*\])?|\\)\s*$", "", text.strip()).strip()


def spellings(text: str) -> str:
    r"""Use one command for each sign.

    Examples: `\leq` -> `\le`; `\varnothing` -> `\emptyset`.
    """
    if "\\" in text:
        for pattern, spelling in _SPELLINGS:
            text = pattern.sub(spelling, text)
    return re.sub(r"^([-+]?) ?infinity$", r"\1\\infty", text, flags=re.IGNORECASE)


_SPELLINGS = (
    [
        (re.compile(rf"\\(?:{old})(?![A-Za-z])"), new)
        for old, new in (
            ("leq|leqslant|leqq|lt(?=\\s*=)", r"\\le"),
            ("geq|geqslant|geqq", r"\\ge"),
            ("neq", r"\\ne"),
            ("log\\s*_\\s*(?:e|\\{\\s*e\\s*\\})", r"\\ln"),
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
            (r"pmod\s*(\d)", r"\\pmod{\1}"),
            ("implies|Longrightarrow", r"\\Rightarrow"),
            ("iff", r"\\Leftrightarrow"),
            ("rightarrow|longrightarrow", r"\\to"),
        )
    ]
    + [(re.compile(r"\\(sin|cos|tan)\s*\^\s*\{\s*-\s*1\s*\}"), r"\\arc\1 ")]
    + [(re.compile(r"\^\s*\{\s*\\circ\s*\}"), r"^\\circ "), (re.compile(r"\\%"), "%"), (re.compile(r"\\&"), "&")]
)


_PLAIN = re.compile(
    r"(?<![A-Za-z\\])(?:pi(?![A-Za-z])|(?:arc)?(?:sin|cos|tan)(?=\s*\(|\s+[\dA-Za-z\\](?![A-Za-z])|\d)"
    r"|(?:ln|log|exp)(?=\s*\(|\s*\d|\s+[A-Za-z](?![A-Za-z])))"
)


def plain_formulas(text: str) -> str:
    r"""Write functions, pi and powers of plain text as LaTeX does.

    Examples: `pi/3` -> `\pi /3`; `x**3` -> `x^3`.
    """
    text = re.sub(r"(?<=[\w)])\s?\*\*\s?(?=[\w(-])", "^", text)
    text = re.sub(r"(?<=\^)(-?\d{2,}|-\w)", r"{\1}", text)
    text = re.sub(r"(?<![A-Za-z])([A-Za-z])('+)(?![A-Za-z])", lambda m: f"{m[1]}_{{{len(m[2])}}}", text)  # derivatives
    return _PLAIN.sub(lambda match: f"\\{match[0]} ", text)


_SHORT = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"\\[dtc]?frac(?![a-z])\s*", r"\\frac"),
        (r"\{\s*([^{}]+?)\s*\\choose(?![a-z])\s*([^{}]+?)\s*\}", r"\\binom{\1}{\2}"),
        (r"\\(frac|binom)\s*(\d|[A-Za-z]|\\pi)(?=\s*[\d{\\A-Za-z])", r"\\\1{\2}"),
        (r"(\\(?:frac|binom)\s*\{(?:[^{}]|\{[^{}]*\})*\})\s*(\d|[A-Za-z]|\\pi(?![a-z]))", r"\1{\2}"),
        (r"(\\sqrt\s*(?:\[[^\[\]]*\])?)\s*(\d|[A-Za-z]|\\pi(?![a-z]))", r"\1{\2}"),
        (r"(\\sqrt)\(([^()]*)\)", r"\1{\2}"),  # from a Unicode root
        (r"(?<=\})\s+(?=\{)", ""),
    )
)


def fractions(text: str) -> str:
    r"""Give every fraction, root and binomial braces.

    Examples: `\dfrac12` -> `\frac{1}{2}`; `\sqrt2` -> `\sqrt{2}`.
    """
    for pattern, spelling in _SHORT if "\\" in text else ():
        text = pattern.sub(spelling, text)
    return text


# ------------------------------------------------------------------------------------------------------- amounts

_WORD = r"(?:\s*(?:\\text\s*\{)?\s*(?:hundred|thousand|million|billion|trillion)\b\s*\}?)?"
_DIGITS = r"[-+]?(?:\d(?:[\d.]|\{,\}|,(?=\d)|\\[,;:! ](?=\d))*|\.\d+)"
_MONEY = [
    (name, re.compile(rf"(?<![A-Za-z])(?:{sign})\s*({_DIGITS}{_WORD})"), re.compile(rf"(?<=\d)\s*(?:{sign})(?!\d)"))
    for name, sign in CURRENCIES.items()
]  # fmt: skip
COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?!\d|,\d)")
"""A number with commas between its thousands."""
SPACED = re.compile(r"^[-+]?\d{1,3}(?: \d{3})+(?!\d)")
"""A number with plain spaces between its thousands, at the start of an answer; in a sentence it may be two numbers."""


def money(text: str) -> str:
    r"""Write the currency of an amount behind it.

    Examples: `€5` -> `5 euro`; `125 USD` -> `125 dollar`.
    """
    delimits = (text.count("$") - text.count("\\$")) % 2 == 0
    hidden = re.sub(r"(?<!\\)\$", "\0", text) if delimits else text
    for name, before, behind in _MONEY:
        hidden = behind.sub(f" {name}", before.sub(lambda m, name=name: _priced(m, name), hidden))  # type: ignore[misc]
    return hidden.replace("\0", "$")


def _priced(match: re.Match[str], name: str) -> str:
    """Return an amount with its currency behind it; in a formula, such as $5 + 3, the amount alone."""
    alone = re.match(r"[\s.,;:!?)}]*(?:$|[A-Za-z/}\0$]|\\(?:text|mathrm|\)|\]))", match.string[match.end() :])
    return f"{match[1]} {name}" if alone else match[1]


def thousands(text: str) -> str:
    r"""Join thousands with commas outside of brackets, and with spaces if the number stands alone.

    Examples: `1,250` -> `1250`; `(1,250)` -> `(1,250)`, a pair.
    """
    if re.search(r"[(\[]|\\\{", text) or not any(character.isdigit() for character in text):
        return text
    return COMMAS.sub(_joined, SPACED.sub(_joined, text))


def _joined(match: re.Match[str]) -> str:
    return re.sub(r"\{,\}|[,\s]", "", match[0])


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

    return re.sub(r"(?<=\d)\s*percent(?![a-z])", "%", _MAGNITUDE.sub(product, text))


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
        integer, fixed = match[1] or "0", match[2]
        period = match[6] or match[3] + (match[4] or "") + (match[5] or "")
        if len(integer + fixed + period) > 100:
            return match[0]
        above = int(integer + fixed + period) - int(integer + fixed)
        return f"\\frac{{{above}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"

    return _REPEATING.sub(fraction, text) if "." in text else text


_LABEL = re.compile(
    r"^(?:[A-Za-z][A-Za-z ]*(?:answer|result|total|sum|value|number|area|volume|cost|price|solution)s?\b[A-Za-z ]*"
    r"(?:\bis\b|\bare\b|:)|[A-Za-z][A-Za-z ]+:|(?:the )?(?:final )?answer\s*=|Total:|Answer:)\s*(?=\S)",
    re.IGNORECASE,
)


_HEDGE = re.compile(
    r"^(?:approximately|about|roughly|around|nearly|exactly|equal to|equals|\\approx|\\text\{approximately\})"
    r"\s*(?=[-+.\d\\$])",
    re.IGNORECASE,
)


def labels(text: str) -> str:
    r"""Remove words before a colon or before "is" at the start of an answer, and "about" before a number.

    Examples: `Total: 42` -> `42`; `approximately 42` -> `42`.
    """
    return _HEDGE.sub("", _LABEL.sub("", text, count=1))


def punctuation(text: str) -> str:
    r"""Remove punctuation at the end, and one pair of braces around the whole text.

    Examples: `42.` -> `42`; `{42}` -> `42`.
    """
    text = (
        re.sub(r"(?<!\.)[.,;:!?](?:\s*)$", "", text.strip())
        if not re.search(r"[\d)\]}]!+$", text.strip())
        else text.strip()
    )
    while text.startswith("{") and in_braces(text) == text[1:-1]:
        text = text[1:-1].strip()
    return text


NotationRule = Callable[[str], str]
NOTATION_RULES: tuple[NotationRule, ...] = (
    unicode_signs, money, layout, spellings, plain_formulas, fractions, labels, money, in_digits,
    e_notation, thousands, magnitudes, mixed_numbers, repeating_decimals,
)  # fmt: skip
"""The rules in their order. One runs twice, because another one uncovers its signs."""
LONGEST_ANSWER = 10_000
"""Characters of the longest answer that is rewritten; a longer one equals a reference only as text."""


@lru_cache(8192)
def one_spelling(text: str) -> Quantity:
    """Return the one spelling of an answer or reference, and its unit."""
    if len(text) > LONGEST_ANSWER:
        return Quantity(text.strip(), "")
    text = " ".join(text.split())
    for rule in NOTATION_RULES:
        text = rule(text)
    text, unit = split_amount(text)
    return Quantity(" ".join(punctuation(text).split()), unit)


def normal(text: str) -> str:
    """Return the one spelling of an answer or reference, without its unit."""
    return one_spelling(text).text


_DENIED = re.compile(r"\b(?:is|are|be|was|it's)?\s*not\s+(?:be\s+)?\$?-?\d[\d.,/]*(?<![.,])\$?", re.IGNORECASE)
_EMPHASIS = re.compile(r"(?<!\w)\*\*(?=\S)([^*\n]+?)(?<=\S)\*\*(?!\w)")


def prose(text: str) -> str:
    """Return a sentence in which amounts are bare numbers, for a search for its last expression.

    A number that it denies, as in "not 8", is left out.
    """
    text = _DENIED.sub(" ", text.replace("cannot", "can not"))
    text = _EMPHASIS.sub(r"\1", text)
    text = THIN.sub("", unicode_signs(text))
    for rule in (money, magnitudes, mixed_numbers):
        text = rule(text)
    return re.sub(r"(?<=\d)\s*(?=[\u3400-\u9fff])", " ", re.sub(r"(?<=[\u3400-\u9fff])(?=[-\d])", " ", text))


def squeezed(text: str) -> str:
    """Return a text for comparison as text: without spaces but between digits, and without distinction of cases."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)|\\(?![A-Za-z{}])", "", text).casefold()
