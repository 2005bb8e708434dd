"""Chat messages, tools and templates of prompts: what the policy sees, and what is said at the start."""

import json

import pytest
import tiny_tokenizers
from json_rows import write_rows

from scalerl.cli import main
from scalerl.cli.eval import eval_config, eval_parser
from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config, to_toml
from scalerl.training.config.run import Scoring
from scalerl.training.loop.warm_start import make_tokenizer
from scalerl.training.models.loading import end_tokens
from scalerl.training.prompts.dataset import load_prompts, task_prompts, with_system

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


def test_a_prompt_has_one_system_message(tmp_path):
    text, notes = loaded(tmp_path, CHAT, "--data.system_prompt", "3", prompt=[SYSTEM, USER])
    assert text == "<system>3\n\n2</system><user>1+1</user><assistant>"
    assert any("in front of the system messages that 3 of 3 rows have" in note for note in notes)
    assert with_system([USER], "3") == [{"role": "system", "content": "3"}, USER] and with_system([USER], "") == [USER]


@pytest.mark.parametrize("text", [json.dumps([USER]), "  " + json.dumps([USER], indent=1)])
def test_messages_as_json_text_are_messages(tmp_path, text):
    assert loaded(tmp_path, CHAT, prompt=text)[0] == "<user>1+1</user><assistant>"


@pytest.mark.parametrize(
    "text",
    [
        '[{"role": 1}]',
        '["role"]',
        '[{"role": "user"',
    ],
)
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
        assert sorted(p.answer for p in split.all_prompts) == ["2", "4", "6"]
    with pytest.raises(ConfigError, match=r"data.split: got 'test'; allowed"):
        config = read_config(None, ["--model", "m", "--data", str(tmp_path / "saved"), "--data.split", "test"])
        load_prompts(config, make_tokenizer())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is a directory without rows"):
        load_prompts(read_config(None, ["--model", "m", "--data", str(tmp_path / "empty")]), make_tokenizer())


ENDED = "{% for m in messages %}<{{ m.role }}>{{ m.content }}END\n{% endfor %}" + (
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (ENDED.replace("END", "<end>"), None),
        (ENDED.replace("END", "\n <end>"), None),
        (ENDED.replace("END\n", "<end>"), None),
        (ENDED.replace("END", "<s>"), "'<s>"),
        (ENDED.replace("END", "</answer>"), "'</answer>"),
        (ENDED.replace("END", ""), "'<user>"),
        ("{% if messages|length > 1 %}{{ raise_exception('one question') }}{% endif %}" + ENDED, None),
    ],
)
def test_a_template_that_ends_answers_with_another_token_is_said(tmp_path, template, said):
    tokenizer = tiny_tokenizers.letters()
    tokenizer.chat_template = template
    file = write_rows(tmp_path / "p.jsonl", [{"prompt": "1+1", "answer": "2"}])
    task = read_config(None, ["--model", "m", "--data", str(file), "--task", "math"]).data[0]
    _, notes = task_prompts(task, tokenizer, 0, Scoring(), stop=[1])
    ends = [note for note in notes if "which does not begin with an end token of the model ('<end>')" in note]
    assert (f"ends an answer with {said}" in ends[0] and len(ends) == 1) if said else not ends
    assert not any("end token" in note for note in task_prompts(task, tokenizer, 0, Scoring())[1])  # not known


@pytest.mark.parametrize(
    "files", [{"generation_config.json": {"eos_token_id": [1, 3]}}, {"config.json": {"eos_token_id": 3}}]
)
def test_the_end_tokens_of_a_model_are_read_from_its_files(tmp_path, files):
    for name, content in {"config.json": {"eos_token_id": 2}, **files}.items():
        (tmp_path / name).write_text(json.dumps({"model_type": "qwen3", **content}))
    assert end_tokens(str(tmp_path), "main", tiny_tokenizers.letters()) == (1, 3)


@pytest.mark.parametrize("eos", [[1, -2], "</s>"])
def test_end_tokens_that_cannot_be_ids_are_refused_before_the_weights_are_read(tmp_path, eos):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(ConfigError, match="allowed: ids of the model's tokens"):
        end_tokens(str(tmp_path), "main", tiny_tokenizers.letters())


def test_a_model_without_an_end_token_is_refused_before_its_weights_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "eos_token_id": None}))
    with pytest.raises(ConfigError, match="no end token"):
        end_tokens(str(tmp_path), "main", tiny_tokenizers.letters(eos_token=None))


def test_an_evaluation_has_the_template_arguments_of_its_run_or_its_own(tmp_path):
    tokenizer = tiny_tokenizers.letters()
    tokenizer.chat_template = THINKING
    file = write_rows(tmp_path / "p.jsonl", [{"prompt": "1+1", "answer": "2"}])
    words = ["--data.template_arguments", "{enable_thinking = true}"]
    config = read_config(None, ["--model", "m", "--data", str(file), "--task", "math", *words])
    (tmp_path / "run/model").mkdir(parents=True)
    (tmp_path / "run/config.toml").write_text(to_toml(config))
    suite = ["--suite", str(file), "--task", "math"]
    for given, wanted in (
        ([str(tmp_path / "run")], {"enable_thinking": True}),
        ([str(tmp_path / "run"), "--template-arguments", "{}"], {}),
        ([str(tmp_path), "--template-arguments", '{"enable_thinking": false}'], {"enable_thinking": False}),
        ([str(tmp_path)], {}),
    ):
        _, tasks = eval_config(eval_parser().parse_args([*given, *suite]))
        assert tasks[0].template_arguments == wanted
    text = task_prompts(config.data[0], tokenizer, 0, Scoring())[0][0].text
    assert text.endswith("<think>")


def test_the_arguments_of_a_template_are_a_table(capsys):
    with pytest.raises(SystemExit):
        eval_parser().parse_args(["m", "--template-arguments", "[1]"])
    assert "allowed: a JSON object" in capsys.readouterr().err


def test_a_dry_run_says_what_the_template_does_and_refuses_what_the_run_would(
    tmp_path, capsys, scored_here, no_prospect
):
    tokenizer = tiny_tokenizers.letters()
    rows = [{"prompt": f"{a}+1", "answer": str(a + 1)} for a in range(8)]
    file = write_rows(tmp_path / "p.jsonl", rows)
    words = ["--recipe.prompts_per_step", "2", "--evaluation.prompts", "2"]
    tiny_tokenizers.writer(tokenizer, [5, 6]).save_pretrained(tmp_path / "m")
    for template, code, said in (
        (
            ENDED.replace("END", "</answer>"),
            0,
            "# data.chat_template: the chat template of the model's tokenizer ends an answer",
        ),
        ("{% for m in messages %}Question{% endfor %}", 2, "renders every question as 'Question'"),
    ):
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path / "m")
        call = ["train", "--dry-run", "--model", str(tmp_path / "m"), "--data", str(file), "--task", "math", *words]
        assert main(call) == code
        assert said in "".join(capsys.readouterr())
