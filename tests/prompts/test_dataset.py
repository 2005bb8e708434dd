import datetime
import json
import threading

import pytest
from texts import Tokenizer

from scalerl.core.errors import ConfigError
from scalerl.training.config import PRESETS, read_config
from scalerl.training.config.base import replace
from scalerl.training.config.data import PromptFile
from scalerl.training.config.run import Scoring
from scalerl.training.loop.warm_start import make_tokenizer
from scalerl.training.prompts.dataset import _until, load_prompts, question_of, task_prompts
from scalerl.training.prompts.layouts import PromptRow

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


def test_the_question_of_a_prompt_is_the_last_message_of_the_user_without_template(tmp_path, tokenizer):
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'][0] }}>{{ m['content'] }}{% endfor %}<think>"
    user, assistant = ({"role": role, "content": text} for role, text in (("user", "1+2="), ("assistant", "3")))
    chats = [[user], [{"role": "system", "content": "9"}, {**user, "content": "4+4="}, assistant, user]]
    rows = [{"prompt": chat, "answer": "3", "n": n} for n, chat in enumerate(chats)]
    made = load_prompts(config(write(tmp_path / "p.jsonl", ROWS + rows)), tokenizer).all_prompts
    assert {prompt.question for prompt in made if prompt.answer == "3" and "1+2=" in prompt.text} == {"1+2="}
    assert all(prompt.question in prompt.text and "<" not in prompt.question for prompt in made)
    assert question_of("x" * 5000) == "x" * 300 and question_of([{"role": "system", "content": " y "}]) == "y"


def test_prompts_over_the_limit_are_refused_or_left_out(tmp_path, tokenizer):
    path = write(tmp_path / "p.jsonl", [*ROWS, {"prompt": "1+1+1+1+1+1=", "answer": "6"}])
    with pytest.raises(ConfigError, match="line 37"):
        load_prompts(config(path, "--data.max_prompt_tokens", "6"), tokenizer)
    split = load_prompts(config(path, "--data.max_prompt_tokens", "6", "--data.long_prompts", "drop"), tokenizer)
    assert max(len(prompt.tokens) for prompt in split.all_prompts) == 4 and split.notes == (
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


QUESTIONS = [{"prompt": f"What is {i} + {j}?", "answer": str(i + j)} for i in range(10) for j in range(10)]


def wide(text):
    return "".join(chr(ord(c) + 0xFEE0) if c > " " else c for c in text)


NOTATIONS = {
    "white space": lambda row: {**row, "prompt": "  " + row["prompt"].replace(" ", "\n ")},
    "spaces around signs": lambda row: {**row, "prompt": row["prompt"].replace(" + ", "+")},
    "case": lambda row: {**row, "prompt": row["prompt"].upper()},
    "punctuation at the end": lambda row: {**row, "prompt": row["prompt"].rstrip("?") + "."},
    "invisible characters": lambda row: {**row, "prompt": "\ufeff" + row["prompt"].replace(" ", "\u00a0\u200b")},
    "messages after an instruction": lambda row: {
        **row, "prompt": [{"role": "system", "content": "Use a box."}, {"role": "user", "content": row["prompt"]}]
    },
}  # fmt: skip


@pytest.mark.parametrize("notation", NOTATIONS)
def test_prompts_that_ask_the_same_are_all_held_out_or_all_trained_on(tmp_path, notation):
    again = [{**NOTATIONS[notation](row), "answer": row["answer"] + ".0"} for row in QUESTIONS]
    path = write(tmp_path / "p.jsonl", QUESTIONS + again)
    split = load_prompts(config(path, "--evaluation.prompts", "41"), Tokenizer())
    values = {name: sorted(float(p.answer) for p in getattr(split, name)) for name in ("training", "held_out")}
    by_question = {(row["prompt"], row["answer"]) for row in QUESTIONS}
    assert len(by_question) == 100 and len(split.training) == 160 and len(split.held_out) == 40
    lines = {name: {(int(p.where.split()[-1]) - 1) % 100 for p in getattr(split, name)} for name in values}
    assert len(lines["held_out"]) == 20 and lines["held_out"].isdisjoint(lines["training"])
    assert split.notes == (
        "100 of 200 prompts repeat another one with another answer or notation; those with the same text are all held "
        "out or all trained on",
        "held out 40 prompts, not 41, because equal texts stay together",
    )


def test_one_question_with_many_answers_leaves_nothing_to_hold_out_or_to_train_on(tmp_path):
    path = write(tmp_path / "p.jsonl", [{"prompt": "Guess.", "answer": str(i)} for i in range(20)])
    with pytest.raises(ConfigError, match=r"which leaves 0 for training, because the prompts have 1 different texts"):
        load_prompts(config(path), Tokenizer())
    rare = [{"prompt": "Guess again.", "answer": str(i)} for i in range(12)]
    split = load_prompts(config(write(path, [*map(json.loads, path.read_text().splitlines()), *rare])), Tokenizer())
    assert {prompt.text for prompt in split.held_out} == {"Guess again."} and len(split.training) == 20


def test_training_leaves_out_what_a_separate_held_out_file_asks_in_another_notation(tmp_path):
    asked = write(tmp_path / "train.jsonl", QUESTIONS)
    suite = [{**NOTATIONS["messages after an instruction"](row), "answer": "?"} for row in QUESTIONS[:30]]
    write(tmp_path / "suite.jsonl", suite)
    words = ["--suites", f'["{tmp_path}/suite.jsonl"]', "--data.system_prompt", "Think."]
    split = load_prompts(config(asked, *words), Tokenizer())
    assert not {prompt.content for prompt in split.training} & {prompt.content for prompt in split.held_out}
    left = len(QUESTIONS) - len({prompt.content for prompt in split.held_out})
    assert len(split.training) == left and "training prompts that another task holds out" in split.notes[-1]
    write(tmp_path / "suite.jsonl", [{**row, "answer": "?"} for row in QUESTIONS])
    with pytest.raises(ConfigError, match=r"92 of 92 training prompts have the text of a prompt that a task or suite"):
        load_prompts(config(asked, *words), Tokenizer())


def test_a_column_that_no_process_can_send_is_left_out_of_a_file_with_a_note(tmp_path, monkeypatch):
    path = write(tmp_path / "p.jsonl", QUESTIONS)
    film = {"film": threading.Lock(), "day": datetime.date(2025, 1, 2)}
    rows = [PromptRow(row["prompt"], row["answer"], film, "here 1") for row in QUESTIONS]
    monkeypatch.setattr("scalerl.training.prompts.dataset.prompt_rows", lambda task: iter(rows))
    split = load_prompts(config(path), Tokenizer())
    assert {tuple(prompt.columns) for prompt in split.all_prompts} == {("day", "prompt")}
    assert split.notes == (
        "left out the column 'film': here 1: 'film' cannot be sent to other processes (cannot pickle '_thread.lock' "
        "object)",
    )


@pytest.mark.parametrize("long_prompts", ["error", "drop"])
@pytest.mark.parametrize("letter", ["7", "é"])
def test_of_a_prompt_far_over_the_limit_only_the_beginning_is_encoded(
    tmp_path, tokenizer, monkeypatch, letter, long_prompts
):
    rows = [*ROWS[:20], {"prompt": 1_000_000 * letter, "answer": "1"}, *ROWS[20:]]
    longest, encode = [], type(tokenizer).__call__

    def measured(self, text, *args, **options):
        longest.append(max(map(len, text)))
        return encode(self, text, *args, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", measured)
    path = write(tmp_path / "p.jsonl", rows)
    task = PromptFile(path=str(path), long_prompts=long_prompts)
    if long_prompts == "drop":
        prompts, notes = task_prompts(task, tokenizer, 0, Scoring())
        assert [prompt.answer for prompt in prompts] == [row["answer"] for row in ROWS]
        assert "left out 1 prompts over 2048 tokens" in notes
    else:
        said = rf"line 21 \({1_000_000 * len(letter):,} characters, more than [\d,]+ tokens\); raise"
        with pytest.raises(ConfigError, match=said):
            task_prompts(task, tokenizer, 0, Scoring())
    assert max(longest) <= 32 * 2048


def test_a_text_of_few_long_tokens_is_not_taken_for_a_long_prompt(tmp_path):
    def words(texts):
        return ([len(word) for word in text.split()] for text in texts)

    texts = ["a b", " ".join(["x" * 1000] * 9), "c " * 11]
    assert list(_until(10, words, texts)) == [[1, 1], [1000] * 9, [1] * 11]
    assert [len(tokens) > 10 for tokens in _until(10, words, ["c " * 5000, *texts])] == [True, False, False, True]
