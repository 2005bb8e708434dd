"""Tools: schemas, answers to calls, wrong calls as messages, Python in a sandbox, the form of a chat template."""

import shutil
import textwrap

import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError
from scalerl.core.types import Prompt
from scalerl.training.config.base import replace
from scalerl.training.config.data import CustomTask
from scalerl.training.config.overrides import parse_config
from scalerl.training.config.placement import Sandbox
from scalerl.training.config.run import Scoring
from scalerl.training.engines.turns import check_replies, with_replies
from scalerl.training.prompts.sources import custom_rows
from scalerl.training.rewards import code, tools
from scalerl.training.rewards.calls import FORM, ToolCall
from scalerl.training.rewards.checks import sandbox_notes
from scalerl.training.rewards.tools import LOOK_UP, template_form
from scalerl.training.rewards.turns import Reply, reply_to

MODULE = '''
    def price(fruit: str, count: int = 1, row: dict | None = None) -> int:
        """Return the price of fruit.

        Args:
            fruit: Name of the fruit.
            count: How many.
            row: The row.
        """
        if fruit not in row["prices"]:
            raise ValueError(f"no {fruit} here")
        return row["prices"][fruit] * count

    def broken(of: str):
        """Fail.

        Args:
            of: Anything.
        """
        return {}[of]

    class Shop:
        tools = [price, broken]
        def rows(self, count):
            return [{"prompt": f"{n} figs?", "prices": {"fig": 3}, "answer": str(3 * n)} for n in range(count)]
        def score(self, row, completion):
            return completion == row["answer"]

    class Bare(Shop):
        tools = [lambda x: x]
'''


@pytest.fixture
def shop(user_code):
    user_code("own_tools", MODULE)
    rows, _ = custom_rows(CustomTask(function="own_tools:Shop", prompts=9), 1)
    return Prompt("0", "", (1,), "", "Shop", rows[2].columns)


def reply(prompt, text):
    return reply_to(prompt, [{"role": "assistant", "content": text}])


def test_schemas_come_from_signatures_without_the_row(shop):
    (price, _) = shop.columns["tools"]
    assert price["function"]["name"] == "price" and price["function"]["parameters"] == {
        "type": "object", "required": ["fruit"], "properties": {
            "fruit": {"type": "string", "description": "Name of the fruit."},
            "count": {"type": "integer", "description": "How many."},
        },
    }  # fmt: skip
    with pytest.raises(ConfigError, match="a tool of own_tools:Bare has no schema: Cannot generate"):
        custom_rows(CustomTask(function="own_tools:Bare", prompts=2), 1)


def test_calls_are_answered_and_a_completion_without_a_call_is_scored(shop):
    figs = '{"name": "price", "arguments": {"fruit": "fig", "count": 2}}'
    six = {"role": "tool", "content": "6"}
    assert reply(shop, f"<think>{{}}</think>I ask.\n<tool_call>\n{figs}\n</tool_call>") == Reply((six,))
    assert reply(shop, f"<tool_call>{figs}</tool_call><tool_call>{figs}") == Reply((six, six))
    assert reply(shop, figs.replace("arguments", "parameters")) == Reply((six,))  # Llama
    assert reply(shop, "6") == Reply((), 1.0) and reply(shop, "7") == Reply((), 0.0)
    assert reply(shop, f"<think><tool_call>{figs}</tool_call></think>6") == Reply((), 0.0)  # ends: a thought is no call


@pytest.mark.parametrize(("call", "said"), [
    ('{"name": "price", "arguments": {"fruit": "fig"', "Error: the call is not JSON: Expecting ',' delimiter"),
    ('{"name": "prise", "arguments": {}}', "allowed: name (price, broken)"),
    ('{"name": ["price"], "arguments": {}}', "allowed: name (price, broken)"),
    ('{"name": "price", "arguments": "fig"}', "and arguments (an object)"),
    ('{"name": "price", "arguments": {}}', "Error: fruit: Missing required argument"),
    ('{"name": "price", "arguments": {"fruit": "fig", "count": "two"}}', "Error: count: Input should be a valid int"),
    ('{"name": "price", "arguments": {"fruit": "fig", "color": 1}}', "Error: color: Unexpected keyword argument"),
    ('{"name": "price", "arguments": {"fruit": "kiwi", "row": {"prices": {"kiwi": 0}}}}', "Error: no kiwi here"),
])  # fmt: skip
def test_a_wrong_call_is_a_message_to_the_policy(shop, call, said):
    (message,) = reply(shop, f"<tool_call>{call}</tool_call>").messages
    assert message["role"] == "tool" and said in message["content"] and len(message["content"]) < 400


def test_an_error_inside_a_tool_is_a_failure_of_the_environment(shop):
    with pytest.raises(PluginError, match=r"own_tools:Shop.broken raised KeyError: 'fig' \(.*own_tools.py:\d+\)"):
        reply(shop, '{"name": "broken", "parameters": {"of": "fig"}}')


ODD = """
    class Odd:
        def __repr__(self): raise KeyError("odd")
        __str__ = __repr__

    circular = []
    circular.append(circular)
    deep = []
    for _ in range(100_000):
        deep = [deep]
    VALUES = [{(1, 2): 3}, circular, deep, Odd(), [Odd()], {"a": {b"b": 1}}]

    def value(number: int):
        \"\"\"Return a value.

        Args:
            number: Which one.
        \"\"\"
        return VALUES[number]

    class Values:
        tools = [value]
        def rows(self, count): return [{"prompt": str(n)} for n in range(count)]
        def score(self, row, completion): return 1.0
"""


def test_a_result_that_is_not_json_is_a_failure_of_the_environment(user_code):
    user_code("odd_tools", ODD)
    rows, _ = custom_rows(CustomTask(function="odd_tools:Values", prompts=2), 0)
    odd = Prompt("0", "", (1,), "", "Values", rows[0].columns)
    for number in range(6):
        with pytest.raises(PluginError, match=r"odd_tools:Values.value returned .*, which is not JSON \([A-Z]\w+: "):
            reply(odd, f'{{"name": "value", "parameters": {{"number": {number}}}}}')


@pytest.mark.slow
def test_the_template_shows_tools_and_one_that_does_not_is_an_error(shop, chat, monkeypatch):
    from scalerl.training.prompts.dataset import task_prompts

    task = CustomTask(function="own_tools:Shop", prompts=9)
    with pytest.raises(ConfigError, match="the tools price, broken, and the prompts do not show price"):
        task_prompts(task, chat, 1, Scoring())
    chat.chat_template = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}" + chat.chat_template
    prompts, _ = task_prompts(task, chat, 1, Scoring())
    first = '{"type": "function", "function": {"name": "price", "description": "Return the price of fruit.", '
    assert prompts[0].text.startswith(first)
    assert with_replies(prompts, 8)[1]
    check_replies(prompts, chat, Scoring())
    chat.chat_template = chat.chat_template.replace("for m in messages", "for m in messages if m.role != 'tool'")
    with pytest.raises(ConfigError, match="omits or repeats messages of roles assistant, tool"):
        check_replies(prompts, chat, Scoring())


def test_python_runs_in_a_sandbox(monkeypatch):
    code.prepare(Scoring(sandbox=Sandbox(mode="unsafe", test_s=1.0)))
    code.judge.cache_clear()
    call = ToolCall("python", {"code": "print(6 * 7)\nprint(nothing)"})
    said = tools.answer([tools.python], call, {}, "own:Task")
    assert said.startswith("42\nended with exit status 1 (NameError: name 'nothing' is not defined")
    late = ToolCall("python", {"code": "while True: pass"})
    assert tools.answer([tools.python], late, {}, "own:Task") == "took longer than 1 s"
    code.judge().close()
    code.judge.cache_clear()
    code.prepare(Scoring())


def test_a_task_with_python_needs_a_sandbox_before_training(user_code, monkeypatch):
    head, coder = (
        "from scalerl.training.rewards.tools import python\n",
        "class Coder(Shop):\n    tools = [price, python]\n",
    )
    user_code("own_coder", head + textwrap.dedent(MODULE) + coder)
    monkeypatch.setattr(shutil, "which", lambda name: None)

    def notes(name, **scoring):
        table = f'[model]\nkind = "hf"\npath = "m"\n[data]\nkind = "custom"\nfunction = "own_coder:{name}"\n'
        config = replace(parse_config(table, "here"), scoring=Scoring(**scoring))
        rows, _ = custom_rows(config.data[0], 1)
        return sandbox_notes(config.data, config.scoring.sandbox, [Prompt("0", "", (1,), "", name, rows[0].columns)])

    assert notes("Shop") == []
    with pytest.raises(ConfigError, match=r"scoring.sandbox.mode: this machine has no sandbox .*: the program bwrap"):
        notes("Coder")
    assert "WITHOUT a sandbox" in notes("Coder", sandbox=Sandbox(mode="unsafe"))[0]


HEAD = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}"
)
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALL = "{% for c in m.tool_calls or [] %}CALL{% endfor %}"
HERMES = (
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
)
XML = (
    "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n"
    "{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
LLAMA = '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
LIST = '<|tool_call|>[{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}]'
TEXT = "<｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{ '' + c.function.arguments }}<｜tool▁call▁end｜>"


@pytest.mark.parametrize(
    ("written", "form", "note"),
    [
        (HERMES, "hermes", ""),
        (LLAMA, "json", ""),
        (XML, "qwen3.5", ""),
        (LIST, "marked-json", ""),
        (TEXT, "deepseek", ""),  # its template joins the arguments to a text, so they must be one
        ("!{{ c.function.name }}!", "", "writes a call as '!look_up!', a form that is not read"),
        ("", "", "the chat template shows no call of look_up, so calls are read in any of the known forms"),
    ],
)
def test_the_form_of_the_template_is_found_from_a_call_that_it_writes(chat, written, form, note):
    chat.chat_template = HEAD + CALL.replace("CALL", written) + END
    found, about = template_form(chat, [LOOK_UP])
    assert found == form and note in about and bool(about) == bool(note)


def test_only_the_form_of_the_template_is_read(shop, chat):
    from scalerl.training.prompts.dataset import task_prompts

    chat.chat_template = HEAD + CALL.replace("CALL", XML) + END
    prompts, notes = task_prompts(CustomTask(function="own_tools:Shop", prompts=9), chat, 1, Scoring())
    assert prompts[2].columns[FORM] == "qwen3.5" and not any("tools:" in note for note in notes)
    shown = "<tool_call>\n<function=price>\n<parameter=fruit>\nfig\n</parameter>\n</function>\n</tool_call>"
    assert reply(prompts[2], shown) == Reply(({"role": "tool", "content": "3"},))
    other = '<tool_call>{"name": "price", "arguments": {"fruit": "fig"}}</tool_call>'
    assert reply(prompts[2], other) == Reply((), 0.0)
