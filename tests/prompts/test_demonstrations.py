"""Rows of prompt and completion: tokens as in RL, the end token, and errors with file and line."""

import pytest
from json_rows import write_rows

from scalerl.config import RunConfig, TinyModel
from scalerl.config.base import build
from scalerl.config.data import PromptFile, TextTask
from scalerl.config.supervised import Supervised
from scalerl.core.errors import ConfigError
from scalerl.prompts.dataset import task_prompts
from scalerl.prompts.demonstrations import conversation, end_token, load_demonstrations
from scalerl.training.warm_start import make_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ '(' if m.role == 'user' else '<think>' if m.role == 'system' else ':' }}{{ m.content }}"
    "{{ '~' }}{% endfor %}{% if add_generation_prompt %}{{ ':' }}{% endif %}"
)
"""User messages begin with `(`, the assistant's with `:`, and all end with `~`."""


def tokenizer(template=None):
    made = make_tokenizer()
    made.chat_template = template
    return made


def file_of(tmp_path, *rows):
    return str(write_rows(tmp_path / "rows.jsonl", rows))


def load(path, template=None, stop=(), limit=100, **settings):
    settings = Supervised(model="m", data=path, **{"held_out": 0, **settings})
    return load_demonstrations(settings, tokenizer(template), stop, limit)


def text(tokens):
    return make_tokenizer().decode(tokens)


def test_a_row_is_prompt_then_completion_then_the_end_token(tmp_path):
    (row,) = load(file_of(tmp_path, {"prompt": "7+4=", "completion": "1"})).training
    assert text(row.tokens) == "7+4=1\n" and row.prompt_length == 4 and row.where.endswith("rows.jsonl line 1")


def test_the_prompt_has_the_tokens_that_a_run_gives_it(tmp_path):
    path = file_of(tmp_path, {"prompt": "7+4=", "completion": "1", "answer": "1"})
    for template, use, system in ((TEMPLATE, "auto", "3+3"), (TEMPLATE, "never", "3+3"), (None, "auto", "")):
        (row,) = load(path, template, chat_template=use, system_prompt=system).training
        task = PromptFile(path=path, chat_template=use, system_prompt=system)
        ((prompt,), _) = task_prompts(task, tokenizer(template), 0)
        assert row.tokens[: row.prompt_length] == prompt.tokens and len(prompt.tokens) >= 4


def test_an_answer_ends_with_the_templates_end_token_if_the_model_stops_there():
    made = tokenizer(TEMPLATE)
    tilde, newline = made.convert_tokens_to_ids("~"), made.convert_tokens_to_ids("\n")
    chat, plain = TextTask(kind="sft"), TextTask(kind="sft", chat_template="never")
    assert end_token(made, chat, {tilde, newline}) == tilde
    assert end_token(made, chat, {newline}) == newline  # the template's end token would not stop this model
    assert end_token(made, plain, {tilde, newline}) == newline
    made.eos_token = None
    with pytest.raises(ConfigError, match=r"no end token \(eos_token\)"):
        end_token(made, plain, set())


def test_the_last_answer_of_a_conversation_is_the_completion():
    user, message = {"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}
    assert conversation({"messages": [user, message]}, "") == ([user], "2")
    assert conversation({"messages": [user, message, user, message]}, "") == ([user, message, user], "2")
    assert conversation({"prompt": [user], "completion": [message]}, "") == ([user], "2")
    assert conversation({"prompt": "1+1=", "completion": "2", "messages_too": 1}, "") == ("1+1=", "2")


def test_rows_over_the_limit_are_refused_or_left_out(tmp_path):
    path = file_of(tmp_path, {"prompt": "1+1=", "completion": "2"}, {"prompt": "1+1+1+1=", "completion": "4"})
    assert [len(row.tokens) for row in load(path, limit=10).training] == [6, 10]
    with pytest.raises(ConfigError, match="line 2"):
        load(path, limit=9)
    split = load(path, limit=9, too_long="drop")
    assert [len(row.tokens) for row in split.training] == [6] and split.notes == ("left out 1 rows over 9 tokens",)
    with pytest.raises(ConfigError, match="2 of 2 rows are over 5 tokens"):
        load(path, limit=5, too_long="drop")


def test_the_held_out_share_does_not_depend_on_the_file_order(tmp_path):
    rows = [{"prompt": f"{i}+{j}=", "completion": c} for i in range(10) for j in range(2) for c in ("1", "2")]
    split = load(file_of(tmp_path, *rows, rows[0]), held_out=0.25)
    apart, trained = ({text(row.tokens[:4]) for row in part} for part in (split.held_out, split.training))
    assert len(apart) == 5 and len(trained) == 15 and not apart & trained  # both rows of a prompt on one side
    assert len(split.held_out) == 10 and split.notes == ("dropped 1 duplicate rows",)
    again = load(file_of(tmp_path, *rows[::-1]), held_out=0.25)
    assert {row.tokens for row in again.held_out} == {row.tokens for row in split.held_out}
    alone = load(file_of(tmp_path, rows[0]), held_out=0.25)
    assert len(alone.training) == 1 and alone.notes == ("all rows have the same prompt, so none is held out",)


def test_steps_and_epochs_exclude_each_other_and_every_field_is_documented():
    with pytest.raises(ConfigError, match="epochs"):
        build(Supervised, {"model": "m", "data": "d", "steps": 3, "epochs": 2}, "scalerl sft")
    assert all(field.description for field in Supervised.model_fields.values())
    assert isinstance(RunConfig().model, TinyModel)  # the run's configuration is unchanged
