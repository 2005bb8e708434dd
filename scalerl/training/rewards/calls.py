r"""Calls of tools in a completion, in the forms in which models write them.

`CALL_FORMS` has one entry for each form. The chat template of a model shows its form (`template_form` of tools.py), and
then only this one is read; any form is read where the template shows none. Calls in the thinking do not count.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scalerl.core.files import parse_json
from scalerl.training.rewards.base import END_THINK, LONGEST_TEXT, MARK, THINK, without_marks

FORM = "call_form"
"""Column of a prompt with the form that the chat template shows (`template_form`); empty: it is not known."""


class ToolCall(NamedTuple):
    """A call of a tool.

    Example: Call(name="look_up", arguments={"city": "Rome"})
    """

    name: Any
    """Text, unless the call is malformed."""
    arguments: Any
    """A dict, unless the call is malformed."""
    problem: str = ""
    """Why the call could not be read."""


class CallForm(NamedTuple):
    """A form of calls.

    Example: Form("hermes", "<tool_call>(?P<calls>.*?)</tool_call>", read_json, '<tool_call>{"name": ...}</tool_call>')
    """

    name: str
    pattern: str
    """Matches a call with the groups `name` and `arguments`, or one or several with the group `calls`."""
    read: Callable[[str], Any]
    """Text of the arguments -> a dict; text of the calls -> an object with name and arguments, or a list of them."""
    example: str


def read_call_json(text: str) -> Any:
    """Read a JSON value, or several with a semicolon between them, as Llama writes them."""
    try:
        return parse_json(text)
    except ValueError:
        parts = re.split(r"(?<=\})\s*;\s*(?=\{)", text)
        if len(parts) == 1:
            raise
    return [parse_json(part) for part in parts]


class Written(str):
    """The text of an argument in a tag, whose type only the schema of the tool knows."""


def read_tags(text: str) -> Any:
    """Read `<parameter=city>Rome</parameter>`, `<parameter name="city">` or `<arg_key>city</arg_key><arg_value>`.

    Llama 3.1 writes JSON there.
    """
    if text.startswith("{"):
        return parse_json(text)
    return {match[1] or match[2] or match[3]: Written(match[4].removesuffix("\n")) for match in _TAGGED.finditer(text)}


_SPACE = r"(?:\w+:|｜DSML｜)?"
"""The name space of a tag."""
_TAGGED = re.compile(
    rf"<{_SPACE}(?:parameter=([^<>\n]+)|parameter name=\"([^\"\n]+)\"[^>\n]*|arg_key>([^<]*)</arg_key)>"
    rf"(?:\s*<arg_value>)?\n?(.*?)(?:</{_SPACE}(?:parameter|arg_value)>|(?=<parameter|</function>)|\Z)",
    re.DOTALL,
)


def read_python(text: str) -> list[dict[str, Any]]:
    """Read a list of Python calls with keywords, or one call a line: `[look_up(city="Rome")]`."""
    if len(text) > LONGEST_PYTHON:
        raise ValueError(f"more than {LONGEST_PYTHON} characters")
    calls_made = []
    for line in [text] if text.lstrip().startswith("[") else text.strip().splitlines():
        try:
            body = ast.parse(line.strip(), mode="eval").body
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"no Python calls: {error}") from None
        for call in body.elts if isinstance(body, ast.List) else [body]:
            if not isinstance(call, ast.Call) or call.args:
                raise ValueError("no calls with names of all arguments")
            arguments = {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords}
            calls_made.append({"name": _dotted(call.func), "arguments": arguments})
    return calls_made


def _dotted(function: ast.expr) -> str:
    """Return the last part of the name of a function: `look_up` of `functions.look_up`."""
    if isinstance(function, (ast.Name, ast.Attribute)):
        return function.id if isinstance(function, ast.Name) else function.attr
    raise ValueError("no calls of a name")


LONGEST_PYTHON = 100_000
"""Characters of the longest list of Python calls."""


def _literal(value: ast.expr) -> Any:
    if isinstance(value, ast.Name) and value.id in _CONSTANTS:
        return _CONSTANTS[value.id]
    try:
        return ast.literal_eval(value)
    except (TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


_CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


def read_gemma(text: str) -> Any:
    """Read JSON with names without quotes, and with texts between `<|"|>`."""
    parts = text.split('<|"|>')
    parts[::2] = [re.sub(r"(?<=[{,])\s*([\w.-]+)\s*:", r'"\1":', part) for part in parts[::2]]
    parts[1::2] = map(json.dumps, parts[1::2])
    return parse_json("".join(parts))


_NAME = r"\s*(?:functions\.)?(?P<name>[\w.-]+?)"
_MARKS = rf"(?:{MARK}|\s)*"
CALL_FORMS = (
    CallForm("qwen3.5",
         rf"(?:<{_SPACE}tool_call>\s*)?<function=(?P<name>[^<>\s]+)>(?P<arguments>.*?)(?:</function>|\Z)"
         rf"(?:\s*</{_SPACE}tool_call>)?", read_tags,
         "<tool_call>\n<function=look_up>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"),
    CallForm("glm", rf"<tool_call>{_NAME}\s*(?P<arguments>(?=</tool_call>)|<arg_key>.*?)(?:</tool_call>|\Z)", read_tags,
         "<tool_call>look_up\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"),
    CallForm("hermes", r"<tool_call>(?P<calls>.*?)(?:</tool_call>|\Z)", read_call_json,
         '<tool_call>\n{"name": "look_up", "arguments": {"city": "Rome"}}\n</tool_call>'),
    CallForm("mistral",
         rf"\[TOOL_CALLS\]{_NAME}(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?P<arguments>\{{.*?)(?=\[TOOL_CALLS\]|\Z)",
         read_call_json,
         '[TOOL_CALLS]look_up[ARGS]{"city": "Rome"}'),
    CallForm("mistral-json", r"\[TOOL_CALLS\](?P<calls>.*)", read_call_json,
         '[TOOL_CALLS] [{"name": "look_up", "arguments": {"city": "Rome"}}]'),
    CallForm("deepseek",
         r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<name>[^<\s]+)(?:<｜tool▁sep｜>)?"
         r"\s*(?:```json)?(?P<arguments>.*?)(?:```\s*)?(?:<｜tool▁call▁end｜>|\Z)\s*(?:<｜tool▁calls▁end｜>)?",
         read_call_json,
         '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look_up<｜tool▁sep｜>{"city": "Rome"}<｜tool▁call▁end｜>'
         "<｜tool▁calls▁end｜>"),
    CallForm("gpt-oss",
         rf"(?:(?:<\|start\|>assistant)?<\|channel\|>\s*commentary\s*)?\bto={_NAME}(?:<\|channel\|>\s*commentary)?"
         r"\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>(?P<arguments>\s*\{.*?)(?:<\|call\|>|<\|end\|>|\Z)",
         read_call_json,
         '<|channel|>commentary to=functions.look_up <|constrain|>json<|message|>{"city": "Rome"}<|call|>'),
    CallForm("kimi",
         rf"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>{_NAME}(?::\d+)?\s*<\|tool_call_argument_begin\|>"
         r"(?P<arguments>.*?)(?:<\|tool_call_end\|>|\Z)\s*(?:<\|tool_calls_section_end\|>)?", read_call_json,
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"
         '{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>'),
    CallForm("invoke",
         rf"(?:<{_SPACE}(?:function_calls|tool_call)>\s*)?<{_SPACE}invoke name=\"(?P<name>[^\"]+)\">"
         rf"(?P<arguments>.*?)(?:</{_SPACE}invoke>|\Z)(?:\s*</{_SPACE}(?:function_calls|tool_call)>)?", read_tags,
         '<minimax:tool_call>\n<invoke name="look_up">\n<parameter name="city">Rome</parameter>\n</invoke>\n'
         "</minimax:tool_call>"),
    CallForm("gemma", r"<\|tool_call>call:(?P<name>[\w.-]+)(?P<arguments>\{.*?)(?:<tool_call\|>|\Z)", read_gemma,
         '<|tool_call>call:look_up{city:<|"|>Rome<|"|>}<tool_call|>'),
    CallForm("marked-json",
         r"(?:<\|tool_call\|>|functools(?=\[)|<tool_calls>|<TOOLCALL>"
         r"|<\|START_ACTION\|>|<\|action_start\|><\|plugin\|>)(?P<calls>.*?)"
         r"(?:<\|/tool_call\|>|</tool_calls>|</TOOLCALL>|<\|END_ACTION\|>|<\|action_end\|>|\Z)", read_call_json,
         '<|tool_call|>[{"name": "look_up", "arguments": {"city": "Rome"}}]<|/tool_call|>'),
    CallForm("json", rf"\A{_MARKS}(?P<calls>(?=\{{|\[\s*\{{)(?=.*\"name\")(?=.*\"(?:parameters|arguments)\").*)",
         read_call_json, '{"name": "look_up", "parameters": {"city": "Rome"}}'),
    CallForm("pythonic",
         r"(?:<\|tool_call_start\|>|<\|python_start\|>|<function_calls>)(?P<calls>.*?)"
         r"(?:<\|tool_call_end\|>|<\|python_end\|>|</function_calls>|\Z)", read_python,
         '<|tool_call_start|>[look_up(city="Rome")]<|tool_call_end|>'),
    CallForm("python-list", rf"\A{_MARKS}(?P<calls>\[\s*[A-Za-z_][\w.]*\(\s*(?:\w+\s*=.*)?\)[\s,]*\]){_MARKS}\Z",
         read_python,
         '[look_up(city="Rome")]'),
)  # fmt: skip
"""The forms in the order in which they are tried, with an example. Some read the forms of several models:

qwen3.5 that of Qwen3-Coder, Nemotron 3 and Seed-OSS, glm that of GLM-4.5 and later, hermes that of Qwen 2.5 and Qwen3,
mistral that of its newer tokenizers, deepseek those of R1, V3 and V3.1, invoke those of MiniMax M2 and DeepSeek V3.2,
marked-json those of Phi-4, Granite, Nemotron Nano, Command R and InternLM, json that of Llama 3.1, pythonic those of
LFM2 and Olmo 3, python-list those of Llama 3.2 and Llama 4.
"""
BY_NAME = {form.name: form for form in CALL_FORMS}
_COMPILED = {form.name: re.compile(form.pattern, re.DOTALL) for form in CALL_FORMS}


def calls(completion: str, form: str = "", tools: Sequence[Mapping[str, Any]] = ()) -> list[ToolCall]:
    """Return the calls in a completion; calls in the thinking do not count. The arguments are those of `split`."""
    return split(completion, form, tools)[1]


def split(completion: str, form: str = "", tools: Sequence[Mapping[str, Any]] = ()) -> tuple[str, list[ToolCall]]:
    """Return a completion without its calls, and the calls.

    Args:
        completion: Text of the policy.
        form: Name of the only form that is read; empty: the first one in the text.
        tools: Schemas of the tools, for the types of arguments in tags.
    """
    thinking, ended, text = completion.rpartition(END_THINK)
    text = text.partition(THINK)[0]
    for each in [BY_NAME[form]] if form else CALL_FORMS:
        pattern = _COMPILED[each.name]
        if matches := list(pattern.finditer(text[-LONGEST_TEXT:])):
            rest = f"{thinking}{ended}{pattern.sub('', text)}".strip()
            return rest, [call for match in matches for call in _read(each, match, tools)]
    return completion, []


def _read(form: CallForm, match: re.Match[str], tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Return the calls of one match."""
    several = "calls" in match.groupdict()
    content = without_marks(match["calls" if several else "arguments"], MARK).strip()
    try:
        found = form.read(content)
        requests = found if several else [{"name": match["name"], "arguments": found}]
        return [_call(request, tools) for request in (requests if isinstance(requests, list) else [requests])]
    except ValueError as error:
        kind = "JSON" if form.read is read_call_json else f"of the form {form.name}"
        return [ToolCall("", None, f"the call is not {kind}: {error}; allowed: calls such as {form.example}")]


def _call(request: Any, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    if not isinstance(request, dict):
        return ToolCall(None, None)
    request = request["function"] if isinstance(request.get("function"), dict) else request
    name = request.get("name", request.get("tool_name"))
    arguments = request.get("arguments", request.get("parameters"))
    if isinstance(arguments, str):  # some models write them as a JSON text
        arguments = parse_json(arguments) if arguments.lstrip().startswith("{") else arguments
    if isinstance(arguments, dict):
        properties = _properties(name, tools)
        arguments = {key: _typed(value, properties.get(key)) for key, value in arguments.items()}
    return ToolCall(name, arguments)


def _properties(name: Any, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters; empty if it has none that can be read."""
    functions = [tool.get("function", tool) for tool in tools]
    parameters = next((function.get("parameters") for function in functions if function.get("name") == name), None)
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return properties if isinstance(properties, dict) else {}


def _kinds(schema: Any) -> set[str]:
    """Return the types that a schema allows; empty if it does not say."""
    if not isinstance(schema, dict):
        return set()
    if isinstance(schema.get("anyOf"), list):
        return set().union(*map(_kinds, schema["anyOf"]))
    kind = schema.get("type")
    return {one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)}


def _typed(value: Any, schema: Any) -> Any:
    """Return the text of a tag as a value of the type in its schema; without one, only lists and objects are JSON."""
    if not isinstance(value, Written):
        return value
    kinds = _kinds(schema)
    if "string" in kinds or not (kinds or value.lstrip().startswith(("[", "{"))):
        return str(value)
    try:
        return _CONSTANTS[value.strip()] if value.strip() in _CONSTANTS else parse_json(value)
    except ValueError:
        return str(value)
