"""Tools of an environment: functions that the policy calls in its completions (docs/environments.md).

The chat template shows their schemas to the policy. A completion with calls is answered with a message of the role
`tool` for each of them. A call that cannot be made is answered with what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from pydantic import ValidationError, validate_call

from scalerl.core.errors import ConfigError, raising, short
from scalerl.core.plugins import PluginError, call, signature_of
from scalerl.training.models.template import render
from scalerl.training.rewards.calls import BY_NAME, ToolCall, calls
from scalerl.training.rewards.code import judge
from scalerl.training.rewards.custom import task_object

Tool = Callable[..., Any]

ROW = "row"
"""Parameter of a tool that gets the row and is not shown to the policy."""


LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look up a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Its name."}}},
    },
}
"""A tool for checks of a chat template, where those of a program are not known."""


def schemas(columns: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Return the schemas of a task's tools, and whether one of them runs programs, which needs a sandbox.

    The schemas come from the signatures and docstrings in Google's style.

    Raises:
        ConfigError: A function has no docstring, or a parameter has no type or description.
    """

    def problem(error: Exception) -> str:
        return (
            f"data.function: a tool of {columns['function']} has no schema: {' '.join(str(error).split())}; allowed: "
            "functions with a docstring in Google's style, and with a type and a description of every parameter"
        )

    with raising(ConfigError, problem):
        functions = list(getattr(task_object(columns), "tools", ()))
        if not functions:
            return [], False
        from transformers.utils import get_json_schema  # takes seconds

        tool_schemas = [get_json_schema(tool) for tool in functions]
    for schema in tool_schemas:
        parameters = schema["function"]["parameters"]
        parameters["properties"].pop(ROW, None)
        parameters["required"] = [parameter for parameter in parameters.get("required", ()) if parameter != ROW]
    return tool_schemas, python in functions


def template_form(tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the form in which a chat template writes calls, and a note if there is none or it is not read.

    A model writes calls as its template showed them in training. One call is written by the template and read back.

    Args:
        tokenizer: The model's tokenizer, with a chat template.
        tools: Schemas of the tools.

    Returns:
        The name of the form, empty if it is not known; and the note, empty if the call comes back.
    """
    name, properties = tools[0]["function"]["name"], tools[0]["function"]["parameters"]["properties"]
    arguments = dict.fromkeys(properties, "7")
    written = [_written(tokenizer, tools, name, form) for form in (arguments, json.dumps(arguments))]
    text = next((text for text in written if name in text), "")
    if not text:
        return "", f"tools: the chat template shows no call of {name}, so calls are read in any of the known forms"
    while end := next((token for token in tokenizer.all_special_tokens if text.rstrip().endswith(token)), ""):
        text = text.rstrip().removesuffix(end)
    for form in BY_NAME:
        read = calls(text, form)
        if len(read) == 1 and (read[0].name, read[0].arguments) == (name, arguments):
            return form, ""
    return "", (
        f"tools: the chat template writes a call as {short(text.strip(), 200)}, a form that is not read, so the "
        "model's calls are read only if it uses one of the known forms (docs/environments.md)"
    )


def _written(tokenizer: Any, tools: Sequence[Mapping[str, Any]], name: str, arguments: Any) -> str:
    """Return a call as the chat template writes it; empty if the template fails."""
    made = {"type": "function", "id": "a1b2c3d4e", "function": {"name": name, "arguments": arguments}}
    question: list[dict[str, Any]] = [{"role": "user", "content": "What is 2+2?"}]
    turn: Any = {"role": "assistant", "content": "", "tool_calls": [made]}
    try:
        before = render(tokenizer, question, tools=tools)
        whole = render(tokenizer, [*question, turn], tools=tools, prompted=False)
    except ConfigError:
        return ""
    return whole.removeprefix(before) if whole.startswith(before) else whole.rpartition("What is 2+2?")[2]


def answer(tools: Sequence[Tool], made: ToolCall, row: Mapping[str, Any], name: str) -> str:
    """Return the result of a call as text, or what is wrong with the call.

    Args:
        tools: Functions.
        made: The call, such as Call("look_up", {"city": "Rome"}).
        row: Row of the prompt.
        name: Import path of the task, for messages.

    Raises:
        PluginError: The tool raised an error that is no ValueError, or returned a value that is not JSON.
    """
    if made.problem:
        return f"Error: {made.problem}"
    by_name = {tool.__name__: tool for tool in tools}
    tool, arguments = by_name.get(str(made.name)), made.arguments
    if tool is None or not isinstance(arguments, dict):
        got = {"name": made.name, "arguments": arguments}
        return f"Error: got {short(got)}; allowed: name ({', '.join(by_name)}) and arguments (an object)"
    signature = signature_of(tool)
    if signature and ROW in signature.parameters:
        arguments = {**arguments, ROW: row}
    result = call(_result, f"{name}.{tool.__name__}", tool, arguments)
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, default=str)
    except Exception as error:  # keys that are no text, a circular or deep value, objects that raise
        raise PluginError(
            f"{name}.{tool.__name__} returned {short(result)}, which is not JSON ({type(error).__name__}: "
            f"{short(str(error), 200)}); allowed: text, or a value that JSON can hold"
        ) from None


def _result(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    """Return the result of a tool, or the text of its ValueError; arguments of wrong types are such errors."""
    try:
        return validate_call(tool)(**arguments)
    except ConfigError:  # no sandbox
        raise
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        return f"Error: {'; '.join(wrong)}"
    except ValueError as error:
        return f"Error: {error}"


_one_at_a_time = Lock()


def python(code: str) -> str:
    """Run a Python program in a sandbox and return what it prints.

    Args:
        code: The program. It has no files and no network.
    """
    with _one_at_a_time:  # replies may come from several threads
        return judge().output(code)
