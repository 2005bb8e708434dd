"""Text of tokens: which tokens stay, the space after the prompt, characters of several tokens, and what is judged."""

import json

import pytest
from tiny_tokenizers import KINDS, byte_level, letters, llama2, writer

from scalerl.cli import main
from scalerl.core.errors import ConfigError
from scalerl.training.config.data import CustomTask
from scalerl.training.config.run import Scoring
from scalerl.training.models.text import TokenText, tokens_of_prompts
from scalerl.training.prompts.dataset import task_prompts
from scalerl.training.rewards.base import judged_text
from scalerl.training.rewards.code_answer import program_of, with_prompt


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("prompt", "completion"), [
    ("def f(x):\n", "    return x , 1"),
    ("x =", " 5 . Is it ?"),
    ("a\nb", "c"),
    ("a", ""),
    ("long " * 20, "  two spaces"),
])  # fmt: skip
def test_a_completion_is_the_text_after_its_prompt(kind, prompt, completion):
    tokenizer = KINDS[kind]()
    before, whole = ids(tokenizer, prompt), ids(tokenizer, prompt + completion)
    assert whole[: len(before)] == before
    text = TokenText(tokenizer, [tokenizer.eos_token_id])
    after = whole[len(before) :]
    assert text.full_text(before, after) == completion == text.judged(before, after)
    assert text.judged([tokenizer.bos_token_id, *before], [*after, tokenizer.eos_token_id]) == completion
    assert text.judged(before[-1:], after) == completion  # a prompt of one token


def test_special_tokens_stay_except_stop_pad_and_bos():
    tokenizer = letters()
    pad, end, start, think, close, answer, _ = range(7)
    text = TokenText(tokenizer, [end, answer])
    five, seven = ids(tokenizer, "57")
    judged = text.judged([five], [think, pad, five, close, start, answer, seven, pad, end, answer, pad])
    assert judged == "<think>5</think><answer>7"  # a stop token ends a text; one before the end was inserted
    assert text.judged([five], [end]) == text.judged([five], []) == ""
    assert text.full_text([five], [pad, seven, end]) == "<pad>7<end>"
    bare = letters(pad_token=None, bos_token=None)
    assert TokenText(bare).judged([five], [pad, seven, end]) == "<pad>7<end>"


@pytest.mark.parametrize("kind", [byte_level, llama2])
def test_a_character_that_the_prompt_begins_belongs_to_the_completion(kind):
    tokenizer = kind()
    before, euro = ids(tokenizer, "a"), ids(tokenizer, "a€b")
    assert len(euro) == len(before) + 4
    text = TokenText(tokenizer)
    assert text.judged(euro[: len(before) + 1], euro[len(before) + 1 :]) == "€b"
    assert text.judged(euro[: len(before) + 3], euro[len(before) + 3 :]) == "b"
    assert text.judged(before, euro[len(before) : -2]).strip("\ufffd") == ""  # an unfinished character at the end


@pytest.mark.parametrize(("completion", "judged"), [
    ("<think>5</think>7", "7"),
    ("<think>5", ""),  # thinking without an end is no answer
    ("a</think>7<think>8", "7"),
    ("5", "5"),
    ("<think>1</think>\n7<|im_end|>\n", "\n7"),
    ("<|start|>7<|end|><|eot_id|> </s>", "7"),
    ("[INST] 7<end_of_turn>\n<pad><pad>", " 7"),
    ("print('<|im_end|>')", "print('<|im_end|>')"),
])  # fmt: skip
def test_the_text_after_the_thinking_is_judged_without_tokens_of_a_template_around_it(completion, judged):
    assert judged_text(completion) == judged


def test_a_program_keeps_tags_in_its_text_and_its_indentation():
    assert program_of("```python\nx = '<|im_end|></answer>'\n```") == "x = '<|im_end|></answer>'\n"
    head = 'def f(x):\n    """Return x."""\n'
    assert with_prompt("    return x<|im_end|>", head, "f") == head + "    return x"
    assert with_prompt("<answer>    return x</answer>", head, "f") == head + "    return x"


@pytest.mark.parametrize(("tokenizer", "written", "answer", "passed"), [
    (letters, ["<think>", "5", "</think>"], "5", False),
    (letters, ["<think>", "5", "</think>", "7"], "7", True),
    (letters, ["<think>", "5", "</think>", "<answer>", "7", "</answer>"], "7", True),
    (llama2, ["<think>", "▁", "5", "</think>", "7"], "7", True),
])  # fmt: skip
def test_an_evaluation_judges_the_text_with_its_tags(
    tmp_path, monkeypatch, capsys, scored_here, tokenizer, written, answer, passed
):
    monkeypatch.chdir(tmp_path)
    made = tokenizer()
    chain = made.convert_tokens_to_ids(["?", *written, "<end>"])
    writer(made, chain).save_pretrained("m")
    made.save_pretrained("m")
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "what?", "answer": answer}))
    words = ["eval", "m", "--suite", "p.jsonl", "--task", "math", "--samples", "1", "--max-tokens", "16", "--json"]
    assert main(words) == 0, capsys.readouterr().err
    (sample,) = (tmp_path / "evaluations").glob("*/*.jsonl")
    (row,) = map(json.loads, sample.read_text().splitlines())
    assert row["passed"] is passed and not row["truncated"]
    assert row["completion"] == "".join(written).replace("▁", " ") + "<end>"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("after", "before"), [
    ("$A", []),
    ("$A <end>", []),
    ("<s> $A <end>", ["<s>"]),
    ("<s> $A", ["<s>"]),
    ("<think> <s> $A </think> <end>", ["<think>", "<s>"]),
    ("<end> $A <end>", ["<end>"]),  # OPT begins each text with its end token
])  # fmt: skip
def test_no_token_that_the_tokenizer_appends_ends_a_prompt(kind, after, before):
    tokenizer = KINDS[kind](after)
    for prompt in ("what is 1+1? ", "aaaa", "a", "ends <end>", "<end><end>"):
        wanted = [*tokenizer.convert_tokens_to_ids(before), *ids(tokenizer, prompt)]
        assert list(tokens_of_prompts(tokenizer, [prompt])) == [wanted]
    assert next(tokens_of_prompts(tokenizer, [""]))[-1:] in ([], tokenizer.convert_tokens_to_ids(before[-1:]))


def test_a_tokenizer_whose_own_tokens_change_those_of_the_text_gives_no_end_token_either():
    class Odd:
        eos_token_id, sep_token_id = 1, 2

        def __call__(self, texts, add_special_tokens=True):
            return {"input_ids": [[7, 8, 2, 1] if add_special_tokens else [7, 9] for _ in texts]}

    assert list(tokens_of_prompts(Odd(), ["x", "y"])) == [[7, 8], [7, 8]]


def test_a_prompt_of_a_task_with_half_a_character_is_an_error(user_code):
    user_code("half", """
        class Half:
            def rows(self, count):
                return [{"prompt": f"{n} \\ud800"} for n in range(count)]
            def score(self, row, completion):
                return 0
    """)  # fmt: skip
    with pytest.raises(ConfigError, match="half:Half row 0: got a lone surrogate in the prompt or answer"):
        task_prompts(CustomTask(function="half:Half", prompts=2), letters(), 0, Scoring())
