"""Which models are interrupted by default: those whose chat template and vocabulary leave the thinking to them."""

import string

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from scalerl.core.types import Prompt
from scalerl.training.config import read_config
from scalerl.training.loop.resolve import with_length_of_model

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nTHINK{% endif %}"
)
CLOSED, OPEN, QWEN3 = (CHATML.replace("THINK", text) for text in (
    "<think>\n\n</think>\n\n",
    "<think>\n",
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
))  # fmt: skip
WORDS = ["--model", "some/model", "--data", "p.jsonl"]


def chosen(template, *words, vocabulary=(), text=""):
    """Return the kind of length control, and the note about it."""
    ids = {word: number for number, word in enumerate(["<pad>", *string.printable])}
    tokenizer, notes = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(ids, "<pad>"))), []
    tokenizer.add_tokens(list(vocabulary))
    tokenizer.chat_template = template
    config = read_config(None, [*WORDS, *words])
    prompts = [Prompt("0", text, (1,), "", config.data[0].curve)]
    config = with_length_of_model(config, tokenizer, prompts, notes.append)
    return config.recipe.length.kind, config.recipe.length.max_tokens, "".join(notes)


@pytest.mark.parametrize(
    ("template", "options", "kind", "reason"),
    [
        (CLOSED, {}, "none", "the chat template ends the thinking with </think> before the answer"),
        (OPEN, {}, "interruption", ""),
        (QWEN3, {}, "interruption", ""),  # the model opens the thinking itself
        (CHATML.replace("THINK", ""), {}, "none", "neither the model's chat template nor its vocabulary has </think>"),
        (CHATML.replace("THINK", ""), {"vocabulary": ["</think>"]}, "interruption", ""),
        (None, {}, "none", "nor its vocabulary has </think>"),
        (None, {"text": "1+1=<think>"}, "interruption", ""),
        (None, {"text": "1+1=<think>2</think>"}, "none", "the prompt ends the thinking"),
    ],
)
def test_only_models_that_think_are_interrupted(template, options, kind, reason):
    found, most, note = chosen(template, **options)
    assert (found, most) == (kind, read_config(None, WORDS).recipe.length.max_tokens)
    assert reason in note and bool(note) == (kind == "none")


def test_arguments_of_the_template_decide_too():
    assert chosen(QWEN3, "--data.template_arguments", "{enable_thinking = false}")[0] == "none"
