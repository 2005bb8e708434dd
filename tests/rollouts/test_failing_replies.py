"""Replies that cannot be rendered, sent or read: text is cut or replaced, or the rollout counts as failed."""

from concurrent.futures import Future

import pytest
from test_turns import LIMITS, Numbers, make, run

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError
from scalerl.core.types import TURNS, Prompt
from scalerl.training.config.run import Scoring
from scalerl.training.engines.turns import ReplyPool
from scalerl.training.models.template import continuation
from scalerl.training.models.text import TokenText
from scalerl.training.rewards.pool import ProcessEnded
from scalerl.training.rewards.turns import Reply

ENVIRONMENT = """
    import asyncio
    from collections import UserDict
    from scalerl.training.rewards.turns import Reply

    class TwoWords(Exception):
        def __init__(self, one, other): super().__init__(one)

    class Text(str):
        def __reduce__(self): return (int, ("x",))

    class Odd:
        def _raise(self, *_): raise TwoWords("odd", "value")
        __float__ = __len__ = __repr__ = __iter__ = keys = _raise
        shape = property(_raise)

    class OddError(Exception):
        def __str__(self): raise KeyError("no text")

    class OddMapping(UserDict):
        def __getitem__(self, key): raise TwoWords("odd", "mapping")

    def raises(error):
        raise error

    def local():
        class Local(Exception): pass
        raise Local("here")

    KINDS = {
        "an error with two arguments": lambda: raises(TwoWords("no", "entry")),
        "an error of a local class": local,
        "an error without text": lambda: raises(OddError()),
        "an exit": lambda: raises(SystemExit(3)),
        "an odd score": lambda: Odd(),
        "an odd metric": lambda: {"score": 1, "odd": Odd()},
        "an odd mapping": lambda: OddMapping(score=1),
        "no text in a record": lambda: Reply(({"role": "user", "content": Odd()},)),
        "an odd score in a record": lambda: Reply((), Odd()),
        "messages that are none": lambda: Reply(Odd()),
        "a coroutine": lambda: asyncio.sleep(0),
    }
    FINE = {
        "half a character": lambda: "a \\ud800 b",
        "own text in a record": lambda: Reply(({"role": Text("tool"), "content": Text("7")},)),
        "half a key": lambda: {"score": 1, "\\ud800": 2},
    }

    class Hostile:
        def rows(self, count): return [{"prompt": str(n)} for n in range(count)]
        def reply(self, row, messages):
            return {**KINDS, **FINE}[messages[-1]["content"]]()
"""


@pytest.fixture
def hostile(user_code):
    user_code("hostile_turns", ENVIRONMENT)
    import importlib
    import sys

    sys.modules.pop("hostile_turns", None)
    return importlib.import_module("hostile_turns")


def prompt(row=None, threads=4):
    limits = {**LIMITS, "reply_s": 30.0, "reply_threads": threads}
    columns = {"function": "hostile_turns:Hostile", "params": {}, "row": row or {"prompt": "0"}, TURNS: limits}
    return Prompt("0", "", (1,), "", "Hostile", columns)


def said(word):
    return [{"role": "assistant", "content": word}]


def test_every_kind_of_failure_of_an_environment_reaches_its_rollout(hostile):
    pool = ReplyPool(Scoring(workers=1))
    try:
        failing = {kind: pool.request(prompt(), said(kind)) for kind in hostile.KINDS}
        for kind, future in failing.items():
            assert isinstance(future.exception(timeout=60), PluginError), kind
        fine = {kind: pool.request(prompt(), said(kind)).result(timeout=60) for kind in hostile.FINE}
    finally:
        pool._pool.close()
    contents = {kind: reply.messages[0] for kind, reply in fine.items() if reply.messages}
    assert contents["half a character"]["content"] == "a \ufffd b"
    message = contents["own text in a record"]
    assert message == {"role": "tool", "content": "7"} and {type(value) for value in message.values()} == {str}
    assert fine["half a key"] == Reply((), 1.0, {"\ufffd": 2.0})


def test_a_row_that_cannot_be_sent_fails_its_rollout_and_no_other(hostile):
    pool = ReplyPool(Scoring(workers=1))
    try:
        bad = pool.request(prompt({"prompt": "0", "lock": (one for one in "a")}), said("half a character"))
        good = pool.request(prompt(), said("half a character"))
        assert "cannot pickle" in str(bad.exception(timeout=60)) and good.result(timeout=60).messages
    finally:
        pool._pool.close()


class Strict(Numbers):
    """A tokenizer that takes no lone surrogate, as real ones."""

    def __call__(self, text, **options):
        text.encode()
        return super().__call__(text, **options)


@pytest.mark.parametrize(("answer", "problem"), [
    (Reply(({"role": "user", "content": "\ud800"},)), "own:Echo.reply: UnicodeEncodeError: "),
    (PluginError("own:Echo.reply raised \ud800"), "own:Echo.reply raised \ufffd"),
    (TimeoutError(), "own:Echo.reply took longer than 5 s"),
    (ProcessEnded("3 times (exit code 7)"), "own:Echo.reply ended its process 3 times (exit code 7)"),
    (TypeError("cannot pickle"), "own:Echo.reply: TypeError: cannot pickle"),
])  # fmt: skip
def test_a_reply_that_cannot_be_used_ends_its_rollout_and_not_the_run(answer, problem):
    def ask(prompt, said):
        future = Future()
        future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)
        return future

    engine = make(ask=ask)
    engine._text = TokenText(Strict())
    done, _ = run(engine)
    ends = [rollout.outcome for rollout in done.values() if rollout.outcome.ended != "tokens"]
    assert ends and all(end.ended == "problem" and end.problem.startswith(problem) for end in ends)
    assert all(end.problem.isprintable() for end in ends)


def test_messages_that_do_not_fit_are_left_out(chat):
    limit = 64
    messages = [{"role": "tool", "content": f"result {number}"} for number in range(500)]
    tokens = continuation(chat, messages, -1, True, limit)
    shown = chat.decode(tokens).count("<|im_start|>tool")
    assert len(tokens) <= limit and shown >= 1 and chat.decode(tokens).endswith("<|im_start|>assistant\n")
    around = len(continuation(chat, [{"role": "tool", "content": ""}] * (shown + 1), -1, True, 10_000))
    assert around >= limit  # with another message, the template alone takes everything
    assert continuation(chat, messages[:shown], -1, True, limit) == tokens


def test_a_template_that_refuses_a_role_fails_the_rollout(chat):
    refuses = "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}"
    chat.chat_template = chat.chat_template.replace("{% for m in messages %}", "{% for m in messages %}" + refuses)
    with pytest.raises(ConfigError, match="fails on messages of the roles user, assistant, system"):
        continuation(chat, [{"role": "system", "content": "a"}], -1, True, 64)
