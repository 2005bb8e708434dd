"""Where the program of an answer stands: fences, tags, quotations and bare code, as models write them."""

import pytest

from scalerl.training.rewards.code_answer import program_of

SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
INC = "def inc(x):\n    return x + 1\n"
DOC = "def inc(x):\n    '''Add.\n\n    ```\n    inc(1)\n    ```\n    '''\n    return x + 1\n"

READING = {
    **{f"marked {mark}": f"```{mark}\n{SUM}```" for mark in (
        "PYTHON3", "python3.10", "{.python}", "python title=a.py")},
    "CRLF": f"```python\n{SUM}```".replace("\n", "\r\n"),
    "the end of the fence on the last line": f"```python\n{SUM.rstrip()}```",
    "the fence behind a sentence": f"The code: ```python\n{SUM}```\nDone.",
    "a quotation": "".join(f"> {line}\n" for line in f"```python\n{SUM}```".split("\n")),
    "pre and code with a class": f'<pre><code class="language-python">\n{SUM}</code></pre>',
    "a tag": f"<python>\n{SUM}</python>",
    "BEGIN and DONE": f"[BEGIN]\n{SUM}[DONE]",
    "an answer tag with a fence": f"<answer>```python\n{SUM}```</answer>",
    "shell before and after": f"```bash\npip install x\n```\n```python\n{SUM}```\n```bash\npython a.py\n```",
    "another language after it": f"```python\n{SUM}```\n```cpp\nint main() {{}}\n```",
    "input and output before it": f"Input:\n```\n3 4\n```\nOutput:\n```\n7\n```\n```\n{SUM}```",
    "a session after it": f"```python\n{SUM}```\n```python\n>>> print(7)\n7\n```",
    "a correction": f"```python\n{SUM.replace('+', '-')}```\nCorrected:\n```python\n{SUM}```",
    "no fence, with sentences around": f"Here is the code:\n\n{SUM}\nIt adds two numbers.\n",
    "a byte order mark": "\ufeff" + SUM,
    "a zero-width space": f"```python\n\u200b{SUM}```",
    "no end": f"```python\n{SUM}",
}  # fmt: skip


@pytest.mark.parametrize("name", list(READING))
def test_a_program_that_reads_input_is_found(name):
    assert program_of(READING[name], reads=True).strip() == SUM.strip()


CALLED = {
    "a fence in its docstring": (f"```python\n{DOC}```", DOC),
    "an indented block": ("```python\n" + "".join(f"    {line}\n" for line in INC.splitlines()) + "```", INC),
    "non-breaking spaces": (f"```python\n{INC}```".replace("    ", "\u00a0" * 4), INC),
    "a test that imports it": (f"```python\n{INC}```\n```python\nfrom solution import inc\nprint(inc(1))\n```", INC),
    "a session": (f"```python\n{INC}```\n```python\n>>> inc(1)\n2\n```", INC),
    "tests": (f"```python\n{INC}```\n```python\nimport unittest\nclass T(unittest.TestCase): pass\n```", INC),
    "a sentence behind": (f"{INC}\nThis function adds one.", INC),
    **{name: (f"```python\n{body}```\n```python\nprint(inc(2))\n```", body) for name, body in {
        "a lambda": "inc = lambda x: x + 1\n",
        "an annotation": "from typing import Callable\ninc: Callable = lambda x: x + 1\n",
        "an import": "from operator import neg as inc\n",
        "a condition": "try:\n    import numpy\nexcept ImportError:\n    pass\n"
        "if True:\n    def inc(x): return x + 1\n",
        "async": "async def inc(x):\n    return x + 1\n"}.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", list(CALLED))
def test_a_program_that_defines_the_function_is_found_before_its_demonstration(name):
    text, program = CALLED[name]
    assert program_of(text, ["inc"]).strip() == program.strip()


@pytest.mark.parametrize(
    "text",
    ["```cpp\nint main() {}\n```", "The sum is 7.", "x is the input, y = the output",
     "```json\n[1, 2]\n```", "```bash\nx=1\n```"],
)  # fmt: skip
def test_other_text_is_no_program(text):
    assert program_of(text, reads=True) is None
