"""Chat messages, tools and templates of prompts: what the policy sees, and what is said at the start."""

import json

import pytest
from json_rows import write_rows

from scalerl.config import read_config
from scalerl.core.errors import ConfigError
from scalerl.prompts.dataset import load_prompts, task_prompts, with_system
from scalerl.training.warm_start import make_tokenizer

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
THINKING = CHAT.replace("<assistant>{% endif %}", "<assistant>{% if enable_thinking %}<think>{% endif %}{% endif %}")
TOOLS = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}" + CHAT
USER, SYSTEM = {"role": "user", "content": "1+1"}, {"role": "system", "content": "2"}
SCHEMA = {"type": "function", "function": {"name": "f", "parameters": {}}}


def loaded(tmp_path, template, *words, **row):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    rows = ({"prompt": [USER], "answer": str(n), **row} for n in range(3))
    file = write_rows(tmp_path / "p.jsonl", rows)
    config = read_config(None, ["--model", "m", "--data", str(file), "--task", "math", *words])
    prompts, notes = task_prompts(config.data[0], tokenizer, 0, config.scoring)
    return prompts[0].text, notes


def test_an_opened_assistant_turn_stays_open(tmp_path):
    opened = [USER, {"role": "assistant", "content": "3="}]
    assert loaded(tmp_path, CHAT, prompt=opened)[0] == "<user>1+1</user><assistant>3="


def test_a_prompt_has_one_system_message(tmp_path):
    text, notes = loaded(tmp_path, CHAT, "--data.system_prompt", "3", prompt=[SYSTEM, USER])
    assert text == "<system>3\n\n2</system><user>1+1</user><assistant>"
    assert any("in front of the system messages that 3 of 3 rows have" in note for note in notes)
    assert with_system([USER], "3") == [{"role": "system", "content": "3"}, USER] and with_system([USER], "") == [USER]


@pytest.mark.parametrize("text", [json.dumps([USER]), "  " + json.dumps([USER], indent=1)])
def test_messages_as_json_text_are_messages(tmp_path, text):
    assert loaded(tmp_path, CHAT, prompt=text)[0] == "<user>1+1</user><assistant>"


@pytest.mark.parametrize("text", ['[{"role": 1}]', '["role"]', '[{"role": "user"', '[1] has a "role"'])
def test_text_that_only_looks_like_messages_is_text(tmp_path, text):
    assert loaded(tmp_path, CHAT, prompt=text)[0] == f"<user>{text}</user><assistant>"


@pytest.mark.parametrize("tools", [[SCHEMA], json.dumps([SCHEMA])])
def test_a_column_of_tools_reaches_the_template_or_is_said(tmp_path, tools):
    text, notes = loaded(tmp_path, TOOLS, tools=tools)
    assert text.startswith("[f]<user>") and any("show the tools of their column" in note for note in notes)
    text, notes = loaded(tmp_path, CHAT, tools=tools)
    assert text.startswith("<user>") and any("'tools' of 3 rows has no effect" in note for note in notes)


def test_a_column_tools_with_other_values_is_a_column(tmp_path):
    assert loaded(tmp_path, CHAT, tools=["hammer"]) == loaded(tmp_path, CHAT)


def test_arguments_reach_the_template(tmp_path):
    words = ["--data.template_arguments", "{enable_thinking = true}"]
    assert loaded(tmp_path, THINKING, *words)[0].endswith("<assistant><think>")
    assert loaded(tmp_path, THINKING)[0].endswith("<assistant>")
    _, notes = loaded(tmp_path, CHAT, *words)
    assert "data.template_arguments: the chat template of the model's tokenizer has no enable_thinking" in notes


def test_a_template_without_a_generation_prompt_is_said(tmp_path):
    _, notes = loaded(tmp_path, CHAT.partition("{% if add")[0])
    assert any("has no generation prompt" in note for note in notes)
    assert not any("has no generation prompt" in note for note in loaded(tmp_path, CHAT)[1])


def test_a_system_message_without_effect_is_an_error_or_said(tmp_path):
    dropping = CHAT.replace("for m in messages", "for m in messages if m.role != 'system'")
    with pytest.raises(ConfigError, match=r"data.system_prompt: .* leaves out system messages"):
        loaded(tmp_path, dropping, "--data.system_prompt", "3")
    _, notes = loaded(tmp_path, dropping, prompt=[SYSTEM, USER])
    assert any("leaves out the system messages of 3 rows" in note for note in notes)


def test_a_saved_data_set_and_shards_are_read(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.table({"prompt": ["1+1", "2+2", "3+3"], "answer": ["2", "4", "6"]})
    saved = tmp_path / "saved" / "train"
    saved.mkdir(parents=True)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (table[:2], table[2:]), strict=True):
        with arrow.OSFile(str(saved / name), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(part)
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    shards = tmp_path / "shards"
    shards.mkdir()
    parquet.write_table(table[:2], shards / "train-0.parquet")
    write_rows(shards / "train-1.jsonl", [{"prompt": "3+3", "answer": "6"}])
    for path in (tmp_path / "saved", saved, shards):
        words = ["--model", "m", "--data", str(path), "--evaluation.prompts", "1", "--recipe.prompts_per_step", "1"]
        split = load_prompts(read_config(None, [*words, "--task", "math"]), make_tokenizer())
        assert sorted(p.answer for p in split.everything) == ["2", "4", "6"]
    with pytest.raises(ConfigError, match=r"data.split: got 'test'; allowed"):
        config = read_config(None, ["--model", "m", "--data", str(tmp_path / "saved"), "--data.split", "test"])
        load_prompts(config, make_tokenizer())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is a directory without rows"):
        load_prompts(read_config(None, ["--model", "m", "--data", str(tmp_path / "empty")]), make_tokenizer())
