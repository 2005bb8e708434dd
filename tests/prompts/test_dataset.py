import json

import pytest

from scalerl.config import PRESETS, read_config
from scalerl.config.base import replace
from scalerl.core.errors import ConfigError
from scalerl.prompts.dataset import load_prompts
from scalerl.training.warm_start import make_tokenizer

ROWS = [{"prompt": f"{i}+{j}=", "answer": str((i + j) % 10), "level": i} for i in range(6) for j in range(6)]


@pytest.fixture
def tokenizer():
    return make_tokenizer()


def config(path, *options):
    sizes = ["--recipe.prompts_per_step", "4", "--evaluation.prompts", "8"]
    return read_config(None, ["--model", "unused", "--data", str(path), *sizes, *options])


def write(path, lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_rows_become_prompts_with_their_columns(tmp_path, tokenizer):
    split = load_prompts(config(write(tmp_path / "p.jsonl", ROWS)), tokenizer)
    by_text = {p.text: p for p in (*split.training, *split.held_out)}
    assert len(by_text) == 36 and len(split.held_out) == 8
    prompt = by_text["3+4="]
    assert prompt.answer == "7" and prompt.columns["level"] == 3 and prompt.columns["prompt"] == "3+4="
    assert tokenizer.decode(list(prompt.tokens)) == "3+4="


@pytest.mark.parametrize(("rows", "held_out"), [(300, 60), (2000, 200)])
def test_a_fifth_of_a_file_and_at_most_200_prompts_are_held_out_unless_a_number_is_given(
    tmp_path, tokenizer, rows, held_out
):
    lines = [{"prompt": f"{i % 100}+{i // 100}=", "answer": str(i)} for i in range(rows)]
    words = ["--model", "unused", "--data", str(write(tmp_path / "p.jsonl", lines))]
    split = load_prompts(read_config(None, words), tokenizer)
    assert (len(split.training), len(split.held_out)) == (rows - held_out, held_out)
    assert split.notes == (f"held out {held_out} of {rows} prompts; --evaluation.prompts N sets another number",)
    given = load_prompts(read_config(None, [*words, "--evaluation.prompts", "150"]), tokenizer)
    assert (len(given.held_out), given.notes) == (150, ())
    with pytest.raises(ConfigError, match=r"got 1000 of 300.*at most 252.*or auto|got 2000 of 2000"):
        paper = [*words, "--preset", "scalerl", "--evaluation.prompts", str(max(rows, 1000))]
        load_prompts(read_config(None, paper), tokenizer)


def test_the_held_out_prompts_do_not_depend_on_the_file_order(tmp_path, tokenizer):
    forward = load_prompts(config(write(tmp_path / "a.jsonl", ROWS)), tokenizer)
    backward = load_prompts(config(write(tmp_path / "b.jsonl", ROWS[::-1])), tokenizer)
    assert [p.id for p in forward.held_out] == [p.id for p in backward.held_out]
    assert not {p.id for p in forward.held_out} & {p.id for p in forward.training}


def test_duplicates_are_dropped_with_a_note(tmp_path, tokenizer):
    split = load_prompts(config(write(tmp_path / "p.jsonl", ROWS + ROWS[:5])), tokenizer)
    assert len(split.training) + len(split.held_out) == 36
    assert "dropped 5 duplicate rows" in split.notes[0]


def test_a_system_prompt_goes_before_a_plain_prompt(tmp_path, tokenizer):
    split = load_prompts(config(write(tmp_path / "p.jsonl", ROWS), "--data.system_prompt", "1+1="), tokenizer)
    assert split.training[0].text.startswith("1+1=\n\n")


def test_the_chat_template_is_applied_to_text_and_messages_and_can_be_disabled(tmp_path, tokenizer):
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}{% endfor %}<think>"
    chat = [{"prompt": [{"role": "user", "content": "1+2="}], "answer": "3"}]
    path = write(tmp_path / "p.jsonl", ROWS + chat)
    texts = {p.text for p in load_prompts(config(path), tokenizer).training}
    assert "<u>3+4=<think>" in texts or "<u>3+5=<think>" in texts
    with_system = load_prompts(config(path, "--data.system_prompt", "x"), tokenizer).training
    assert all(p.text.startswith("<s>x<u>") for p in with_system)
    never = load_prompts(config(path, "--data.chat_template", "never"), tokenizer).training
    assert not any("<u>" in p.text for p in never)


def test_prompts_over_the_limit_are_refused_or_left_out(tmp_path, tokenizer):
    path = write(tmp_path / "p.jsonl", [*ROWS, {"prompt": "1+1+1+1+1+1=", "answer": "6"}])
    with pytest.raises(ConfigError, match="line 37"):
        load_prompts(config(path, "--data.max_prompt_tokens", "6"), tokenizer)
    split = load_prompts(config(path, "--data.max_prompt_tokens", "6", "--data.long_prompts", "drop"), tokenizer)
    assert max(len(prompt.tokens) for prompt in split.everything) == 4 and split.notes == (
        "left out 1 prompts over 6 tokens",
    )


def test_the_lab_generates_the_training_pool_and_the_held_out_set(tokenizer):
    lab = PRESETS["lab"]
    split = load_prompts(lab, tokenizer)
    assert len(split.training) == lab.data[0].prompts and len(split.held_out) == lab.evaluation.prompts
    assert len({p.id for p in (*split.training, *split.held_out)}) == lab.data[0].prompts + lab.evaluation.prompts
    small = replace(lab, data=(replace(lab.data[0], operations=(1, 1), prompts=4000),))
    with pytest.raises(ConfigError, match="300 distinct"):
        load_prompts(small, tokenizer)
