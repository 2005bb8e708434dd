"""Damaged prompt files in all formats: each is refused by the rule of campaign.py, or read correctly."""

import gzip
import io
import json

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from pyarrow import parquet

from robustness.campaign import Case, check_here, write
from scalerl.cli.exits import guarded
from scalerl.training.config.base import build
from scalerl.training.config.data import PromptFile
from scalerl.training.prompts.layouts import prompt_rows

ROW = '{"prompt": "What is 1+1?", "answer": "2"}\n'


def read(words):
    """Read the prompts of a file like all commands with prompts; print their number."""

    def count():
        fields = {"path": words[0], "task": words[1] if words[1:] else "math"}
        print(f"rows: {len(list(prompt_rows(build(PromptFile, fields, 'data'))))}")
        return 0

    return guarded(count)


def case(fault, content, expect, name="p.jsonl", allowed=(2,)):
    return Case(f"data: {fault}", (name,), write(name, content), expect, allowed)


def row(**fields):
    return json.dumps({"prompt": "What is 1+1?", "answer": "2", **fields}) + "\n"


def table(rows=64):
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"prompt": [f"{n} + 1?" for n in range(rows)], "answer": ["2"] * rows}), out)
    return out.getvalue()


def chat(content, role="user"):
    return row(prompt=[{"role": role, "content": content}])


PARQUET, GZIPPED = table(), gzip.compress(ROW.encode() * 200)
DEEP = "[" * 100_000 + "]" * 100_000
TEXTS = {"p.jsonl": ROW, "p.json": f"[{ROW}]"}

CASES = [
    case("an empty file", b"", "empty"),
    case("only blank lines", "\n\n  \n", "no rows"),
    case("U+2028 inside a string", ROW.replace("1+1", "1\u20281"), "rows: 1", allowed=(0,)),
    case("an escaped NUL in a prompt", row(prompt="a\0b"), "rows: 1", allowed=(0,)),
    case("Latin-1 text", ROW.replace("1+1", "\xe9").encode("latin-1"), "utf-8"),
    *(case(f"{name}: a byte-order mark", "\ufeff" + text, "rows: 1", name, (0,)) for name, text in TEXTS.items()),
    *(case(f"{name}: UTF-16", text.encode("utf-16"), "utf-8", name) for name, text in TEXTS.items()),
    case("an escaped lone surrogate", r'{"prompt": "a\ud83d", "answer": "2"}', "surrogate"),
    case("nested 100,000 deep", f'{{"prompt": {DEEP}, "answer": "2"}}', "nested too deeply"),
    case("an integer of 5,000 digits", f'{{"prompt": "a", "answer": {"9" * 5000}}}', "line 1"),
    case("NaN for an answer", '{"prompt": "a", "answer": NaN}', "nan"),
    case("an LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "line 1"),
    case("the same key twice", '{"prompt": "a", "prompt": "b", "answer": "2"}', "twice"),
    case("no answer", '{"prompt": "a"}', "answer"),
    case("the answer a list of two", row(answer=["1", "2"]), "answer"),
    case("the prompt blank", row(prompt=" \u2003"), "prompt"),
    case("chat content a list", chat([{"type": "text", "text": "a"}]), "content"),
    case("a bad row after good ones", ROW * 50 + "{", "line 51"),
    case("a last line cut off", ROW * 3 + ROW[:20], "line 4"),
    case("gzip: plain text under that name", ROW, "gzip", "p.jsonl.gz"),
    case("gzip: a wrong checksum", GZIPPED[:-8] + bytes(8), "gzip", "p.jsonl.gz"),
    case("gzip under a plain name", GZIPPED, "line 1", "p.jsonl"),
    *(case(f"gzip: cut off at {k}", GZIPPED[:k], "gzip", "p.jsonl.gz") for k in range(1, len(GZIPPED), 27)),
    case("Parquet: text under that name", ROW, "Parquet", "p.parquet"),
    case("Parquet: zeroed in the middle", PARQUET[:64] + bytes(64) + PARQUET[128:], "Parquet", "p.parquet"),
    *(case(f"Parquet: cut off at {k}", PARQUET[:k], "Parquet", "p.parquet") for k in range(1, len(PARQUET), 397)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prompts_are_read_or_refused_with_file_and_line(case, tmp_path, monkeypatch):
    check_here(case, tmp_path, monkeypatch, read)


LEAVES = some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8)
DOCUMENTS = some.recursive(
    LEAVES,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
FIELDS = some.sampled_from(["prompt", "answer", "messages", "reward_model", "solution", "id", "ground_truth"])


@settings(max_examples=100)
@given(rows=some.lists(some.dictionaries(FIELDS, DOCUMENTS), min_size=1, max_size=3))
def test_rows_of_any_content_are_read_or_refused(rows, tmp_path, monkeypatch):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    check_here(case("any JSON", text, (), allowed=(0, 2)), tmp_path, monkeypatch, read)


@settings(max_examples=100)
@given(content=some.binary(min_size=1, max_size=200), ending=some.sampled_from(["jsonl", "json", "parquet"]))
def test_bytes_of_any_kind_are_refused(content, ending, tmp_path, monkeypatch):
    check_here(case("any bytes", content, (), f"p.{ending}", (2,)), tmp_path, monkeypatch, read)
