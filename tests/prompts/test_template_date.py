"""The date of a chat template that asks for today's: given, or that of the start of the run, in all of its prompts."""

import datetime

import pytest
import transformers.utils.chat_template_utils as transformers_templates
from json_rows import write_rows

from scalerl.core.errors import ConfigError
from scalerl.training.config import parse_config, read_config, to_toml
from scalerl.training.loop import resolve
from scalerl.training.loop.warm_start import make_tokenizer
from scalerl.training.models.template import continuation, render
from scalerl.training.prompts.dataset import load_prompts

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
TEMPLATES = {
    "Llama 3.2": "{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n"
    "        {%- set date_string = strftime_now('%d %b %Y') %}\n    {%- else %}\n"
    "        {%- set date_string = '26 Jul 2024' %}\n    {%- endif %}\n{%- endif %}\n"
    "{{- 'Today Date: ' + date_string + '\\n\\n' }}" + CHAT,
    "SmolLM3": "{# ───── a note ───── #}\n{%- set today = strftime_now('%d %B %Y') -%}\n" + CHAT + "{{ today }}\n",
    "GPT-OSS": "{%- macro build_system() -%}\n{{- 'Current date: ' + strftime_now(\"%Y-%m-%d\") }}\n{%- endmacro -%}\n"
    "<|start|>{{ build_system() }}" + CHAT,
    "in a loop, after white space": "\n\n  {% for m in messages %}\n  {{ strftime_now('%A %d %Y') }} {{ m.content }}\n"
    "{% endfor %}",
    "a percent sign": CHAT + "{{ strftime_now('100%% %H:%M, day %j') }} %d",
}
QUESTION = [{"role": "user", "content": "What is 2+2? %d"}]


class At(datetime.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, zone=None):
        return cls(2025, 3, 4, tzinfo=zone)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_prints_the_given_date_as_transformers_prints_todays(name, monkeypatch):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATES[name]
    today, given = render(tokenizer, QUESTION), render(tokenizer, QUESTION, day="2025-03-04")
    assert today != given  # unless a test runs in 2025
    monkeypatch.setattr(transformers_templates, "datetime", At)
    assert render(tokenizer, QUESTION) == given
    assert render(tokenizer, QUESTION, day="2020-12-31") not in (today, given)
    tokenizer.chat_template = {"default": TEMPLATES[name], "tool_use": "{{ strftime_now('%Y') }}: " + CHAT}
    assert render(tokenizer, QUESTION, day="2025-03-04") == given
    tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]
    assert render(tokenizer, QUESTION, tools=tools, day="2020-12-31").startswith("2020: ")


def config(tmp_path, *words):
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(5)]
    write_rows(tmp_path / "p.jsonl", rows)
    sizes = ["--recipe.prompts_per_step", "4", "--evaluation.prompts", "5"]
    return read_config(None, ["--model", "m", "--data", str(tmp_path / "p.jsonl"), *sizes, *words])


class Today(datetime.date):
    @classmethod
    def today(cls):
        return cls(2025, 3, 4)


def test_a_run_records_the_date_of_its_start_and_a_later_one_with_its_file_has_the_same_prompts(tmp_path, monkeypatch):
    tokenizer, notes = make_tokenizer(), []
    tokenizer.chat_template = "{{ strftime_now('%d') }}+" + CHAT.replace("<{{ m.role }}>", "")
    monkeypatch.setattr(resolve, "date", Today)
    started = resolve.dated(config(tmp_path), tokenizer, notes.append)
    assert started.data[0].template_date == "2025-03-04" and len(notes) == 1 and "2025-03-04" in notes[0]
    again = parse_config(to_toml(started), "config.toml")
    assert again == started == resolve.dated(again, tokenizer, notes.append)
    prompts = load_prompts(again, tokenizer).training
    assert all(prompt.text.startswith("04+") for prompt in prompts)
    given = config(tmp_path, "--data.template_date", "2020-12-31")
    assert resolve.dated(given, tokenizer, notes.append) == given and len(notes) == 1
    assert load_prompts(given, tokenizer).training[0].text.startswith("31+")


def test_a_template_without_a_date_records_none(tmp_path):
    tokenizer = make_tokenizer()
    for template, words in ((CHAT, []), (None, []), (TEMPLATES["SmolLM3"], ["--data.chat_template", "never"])):
        tokenizer.chat_template, plain = template, config(tmp_path, *words)
        assert resolve.dated(plain, tokenizer, print) == plain


def test_later_turns_have_the_given_date():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ strftime_now('%d') }}{% endif %}"
        "{% endfor %}"
    )
    reply = continuation(tokenizer, [{"role": "user", "content": "7"}], -1, True, 64, "2025-03-04")
    assert tokenizer.decode(reply) == "047"


@pytest.mark.parametrize("value", ["today", "2025-13-01", "04.03.2025"])
def test_a_date_that_is_none_is_an_error(tmp_path, value):
    with pytest.raises(ConfigError, match=r"template_date.* allowed: auto, or a date such as 2025-01-31"):
        config(tmp_path, "--data.template_date", value)
