"""Forms of calls of tools, in the text of the policy."""

import time

import pytest

from scalerl.training.rewards.calls import BY_NAME, CALL_FORMS, ToolCall, calls, split

ROME = ToolCall("look_up", {"city": "Rome"})
SCHEMA = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {"type": "object", "properties": {
            "room": {"type": "integer"}, "code": {"type": "string"}, "late": {"type": "boolean"},
            "days": {"type": "array", "items": {"type": "string"}},
        }},
    },
}  # fmt: skip


@pytest.mark.parametrize("form", CALL_FORMS, ids=BY_NAME)
def test_each_form_reads_its_example_and_no_form_before_it_does(form):
    assert calls(form.example) == calls(form.example, form.name) == [ROME]
    assert split(f"<think>{form.example}</think>{form.example}", form.name) == (
        f"<think>{form.example}</think>",
        [ROME],
    )
    assert calls(f"<think>{form.example}</think>It is 20.", form.name) == []


@pytest.mark.parametrize(
    "text",
    [
        # as the models of each family write them
        '<tool_call>{"name": "look_up", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>',
        '<tool_call>{"function": {"name": "look_up", "arguments": {"city": "Rome"}}}</tool_call>',
        "<tool_call>look_up<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
        "<seed:tool_call><function=look_up><parameter=city>Rome</parameter></function></seed:tool_call>",
        '<function=look_up>{"city": "Rome"}</function>',
        '[TOOL_CALLS][{"name": "look_up", "arguments": {"city": "Rome"}, "id": "a1b2c3d4e"}]</s>',
        '[TOOL_CALLS]look_up[CALL_ID]a1b2c3d4e[ARGS]{"city": "Rome"}',
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look_up\n```json\n{"city": "Rome"}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="look_up">\n<｜DSML｜parameter name="city" string="true">Rome'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.look_up<|channel|>commentary json"
        '<|message|>{"city": "Rome"}<|call|>',
        "<|python_start|>[look_up(city='Rome')]<|python_end|>",
        'functools[{"name": "look_up", "arguments": {"city": "Rome"}}]',
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "look_up", "parameters": {"city": "Rome"}}]<|END_ACTION|>',
        '<function_calls>\nlook_up(city="Rome")\n</function_calls>',
    ],
)
def test_spellings_of_a_form_are_read(text):
    assert calls(text) == [ROME]


def test_a_call_cut_off_at_the_end_of_a_turn_is_read_if_it_is_whole():
    assert calls('I look.<tool_call>{"name": "look_up", "arguments": {"city": "Rome"}}') == [ROME]
    (cut,) = calls('<tool_call>{"name": "look_up", "argum')
    assert cut.problem.startswith("the call is not JSON: ") and cut.arguments is None


def test_several_calls_are_read_in_order():
    two = [ROME, ToolCall("look_up", {"city": "Oslo"})]
    for form in CALL_FORMS:
        if form.name not in ("json", "python-list", "mistral-json", "gpt-oss"):
            assert calls(form.example + "\n" + form.example.replace("Rome", "Oslo")) == two, form.name
    assert calls('[look_up(city="Rome"), look_up(city="Oslo")]') == two
    request = '{"name": "look_up", "parameters": {"city": "%s"}}'
    assert calls(f"{request % 'Rome'}; {request % 'Oslo'}") == two


def test_arguments_in_tags_get_the_types_of_their_schema():
    text = "<tool_call>\n<function=book>\n" + "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n"
        for name, value in {"room": 7, "code": "007", "late": "True", "days": '["Mo"]', "note": "12"}.items()
    )
    made = ToolCall("book", {"room": 7, "code": "007", "late": True, "days": ["Mo"], "note": "12"})
    assert calls(text + "</function></tool_call>", "qwen3.5", [SCHEMA]) == [made]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[look_up(city=open('f'))]", "not of the form python-list"),
        ("[look_up(city=" + "(" * 5000 + ")]", "not of the form python-list"),
        ("<|tool_call_start|>look_up('Rome')<|tool_call_end|>", "no calls with names of all arguments"),
        ("<|python_start|>[look_up()(city='Rome')]<|python_end|>", "no calls of a name"),
        ("[TOOL_CALLS]look_up[ARGS]{city}", "the call is not JSON"),
    ],
)
def test_a_malformed_call_says_what_is_wrong_and_shows_the_form(text, said):
    (made,) = calls(text)
    assert said in made.problem and "allowed: calls such as" in made.problem


def test_a_text_that_opens_many_calls_is_read_in_time_proportional_to_its_length():
    """Each takes milliseconds; the limit is for a busy machine."""
    for part in ("<function=", "<tool_call>a", "[TOOL_CALLS]a{", "<parameter=", "[a.", " "):
        start = time.process_time()
        calls(part * (200_000 // len(part)))
        assert time.process_time() - start < 2, part


def test_a_deeply_nested_name_is_no_traceback():
    assert calls("[look" + ".up" * 900 + "(city='Rome')]") == [ToolCall("up", {"city": "Rome"})]
