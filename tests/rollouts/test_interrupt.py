"""Length control on token ids. The phrase is 90 91, the end tag 91; thinking has 2 to 3 tokens, the answer 2."""

import numpy as np
import pytest

from scalerl.training.config.length import Interruption, NoLengthControl
from scalerl.training.engines.engine import Request
from scalerl.training.engines.interrupt import NEVER, LengthRule, interrupt_point, length_rule
from scalerl.training.engines.local.slots import SlotTable

RULE = LengthRule(thinking=(2, 3), answer_tokens=2, max_tokens=5, phrase=(90, 91), end_tag=(91,))
STOP = 7


def complete(wanted, rule=RULE, interrupt_at=2, stop=(STOP,)):
    """Feed one token per tick until the rollout ends."""
    table = SlotTable(1, rule, stop)
    table.start(0, Request((0, 0), (1,), key=5))
    table["interrupt_at"][0] = interrupt_at
    for token in wanted:
        finished = table.record(np.asarray([0]), np.asarray([token]), np.asarray([-0.5]), version=3)
        if finished:
            return finished[0].rollout
    raise AssertionError("did not end")


TWO = LengthRule(thinking=(6, 6), answer_tokens=2, max_tokens=8, phrase=(90, 91), end_tag=(90, 91))
STOPS = LengthRule(thinking=(1, 1), answer_tokens=1, max_tokens=2, phrase=(STOP, 91), end_tag=(91,))
NONE = length_rule(NoLengthControl(max_tokens=3), encode=list)


@pytest.mark.parametrize(
    ("rule", "at", "wanted", "got", "ended"),  # ended: "i" interrupted, "t" truncated
    [
        (RULE, 3, [10, 91, 20, STOP], [10, 91, 20, STOP], ""),
        (RULE, 2, [10, 91, 20, STOP], [10, 91, 20, STOP], ""),  # a tag exactly at the limit
        (RULE, 2, [10, STOP], [10, STOP], ""),  # a stop while thinking
        (RULE, 2, [10, 11, 12, 13, 20, 21, 22], [10, 11, 90, 91, 20, 21], "it"),
        (TWO, 6, [91, 90, 10, 90, 91, 20, 21], [91, 90, 10, 90, 91, 20, 21], "t"),  # only a complete tag ends thinking
        (STOPS, 1, [10, 0, 0, 20], [10, STOP, 91, 20], "it"),  # the phrase contains a stop token
        (NONE, NEVER, [10, 91, 20], [10, 91, 20], "t"),
    ],
)
def test_thinking_ends_with_its_tag_or_is_interrupted_at_the_limit(rule, at, wanted, got, ended):
    rollout = complete(wanted, rule, interrupt_at=at)
    assert rollout.tokens.tolist() == got
    assert "i" * rollout.interrupted + "t" * rollout.truncated == ended
    assert rollout.sampled.all() == ("i" not in ended)


def byte_pairs(merges):
    """Return a byte-level BPE tokenizer of all printable characters, with merges in order."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


THINK = [("t", "h"), ("th", "i"), ("thi", "n"), ("thin", "k"), ("<", "/")]
CONTROL = Interruption(thinking_tokens=(30, 30), answer_tokens=4, phrase="\nstop</think>", end_tag="</think>")


@pytest.mark.parametrize(
    ("merges", "tokens", "ways"),
    [
        (THINK, 3, 1),  # </ think > with any text around it, as in SmolLM2
        ([*THINK, (">", "Ċ"), (">Ċ", "Ċ")], 3, 3),  # the last token includes one or two line breaks, as in Qwen2.5
        ([("Ġ", "<"), ("Ġ<", "/"), *THINK], 3, 2),  # the first token includes a space
    ],
)
@pytest.mark.parametrize("around", [("a", "b"), ("a\n", "\n\nb"), ("a ", "\nb")])
def test_a_tag_of_three_text_tokens_ends_thinking(merges, tokens, ways, around):
    tokenizer = byte_pairs(merges)
    rule = length_rule(CONTROL, lambda text: tokenizer.encode(text).ids)
    assert len(rule.end_tag) == tokens and len(rule.tags) == ways
    text = f"{around[0]}</think>{around[1]}"
    wanted = [*tokenizer.encode(text).ids, *tokenizer.encode("wxyz").ids]
    rollout = complete(wanted, rule, interrupt_at=30, stop=())
    written = tokenizer.decode(rollout.tokens.tolist())
    tail = written[written.index("</think>") + len("</think>") :]
    assert not rollout.interrupted and rollout.truncated
    assert len(tokenizer.encode(tail.lstrip("\n")).ids) in (2, 3, 4)  # 4 tokens, including separate line breaks


@pytest.mark.parametrize(("uniform", "point"), [(0.0, 10), (0.333, 10), (0.334, 11), (0.999, 12)])
def test_the_point_is_uniform_over_both_ends(uniform, point):
    rule = LengthRule(thinking=(10, 12), answer_tokens=1, max_tokens=13)
    assert interrupt_point(rule, uniform) == point
