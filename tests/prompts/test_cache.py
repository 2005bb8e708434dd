"""Tests that kept prompts are those that the file gives, in every field, and that they are never out of date."""

import errno
import json
import multiprocessing
import os
import time
from dataclasses import fields
from pathlib import Path

import pytest
from tiny_tokenizers import byte_level

from scalerl.core.types import Prompt
from scalerl.training.config.data import PromptFile
from scalerl.training.config.run import Scoring
from scalerl.training.prompts import cache as prompt_cache
from scalerl.training.prompts import dataset
from scalerl.training.prompts.dataset import task_prompts

ROWS = [
    {"prompt": f"What is {i} + {i}?\u2028 Ünïcode 🙂 \\ \"", "answer": str(2 * i), "level": i / 7, "big": 10**30 + i,
     "nested": {"a": [None, True, {"b": "é"}], "x": -0.0}, "tests": ["assert f(1) == 2"]}
    for i in range(300)
]  # fmt: skip


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prompt_cache, "LEAST_PROMPTS", 100)
    return tmp_path / "cache" / "prompts"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def tokenizer():
    return byte_level()


def load(path: Path, tokenizer, **settings) -> tuple[list[Prompt], list[str]]:
    return task_prompts(PromptFile(path=str(path), **settings), tokenizer, 0, Scoring())


def everything(prompts):
    """All fields, those that do not count in a comparison too, with the types of values: 1 == 1.0 == True."""
    return [[repr(getattr(prompt, one.name)) for one in fields(Prompt)] for prompt in prompts]


@pytest.fixture
def tokenized(monkeypatch):
    """The number of times that a file was tokenized."""
    calls = []
    before = dataset._tokenize
    monkeypatch.setattr(dataset, "_tokenize", lambda *words: calls.append(1) or before(*words))
    return calls


def test_a_second_start_takes_the_same_prompts_from_the_cache(cache, file, tokenizer, tokenized):
    first = load(file, tokenizer)
    second = load(file, tokenizer)
    assert len(tokenized) == 1 and len(first[0]) == 300
    assert everything(second[0]) == everything(first[0]) and second[1] == first[1]


def _cut(content):
    return content[:-7]


def _tokens_flipped(content):
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


def _other_key(content):
    header, _, rest = content.partition(b"\n")
    return json.dumps({**json.loads(header), "key": "0" * 64}).encode() + b"\n" + rest


def _huge_sizes(content):
    header, _, rest = content.partition(b"\n")
    return header + b"\n" + b"\xff" * 16 + rest[16:]


def _not_an_object(content):
    return b"[1, 2]\n" + content


@pytest.mark.parametrize("damage", [_cut, _tokens_flipped, _other_key, _huge_sizes, _not_an_object])
def test_a_damaged_or_foreign_file_is_made_anew(cache, file, tokenizer, tokenized, damage):
    first = load(file, tokenizer)
    (place,) = cache.iterdir()
    whole = place.read_bytes()
    place.write_bytes(damage(whole))
    assert everything(load(file, tokenizer)[0]) == everything(first[0])
    assert len(tokenized) == 2 and place.read_bytes() == whole


def test_a_full_disk_leaves_no_file_and_does_not_fail(cache, file, tokenizer, monkeypatch):
    def full(prompts):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(prompt_cache, "_block", full)
    assert len(load(file, tokenizer)[0]) == 300
    assert list(cache.iterdir()) == []


def test_little_free_space_is_left_to_the_run(cache, file, tokenizer, monkeypatch):
    monkeypatch.setattr(prompt_cache, "FREE_DISK", 10**9)
    load(file, tokenizer)
    assert list(cache.iterdir()) == []


def test_the_number_and_the_bytes_of_kept_files_are_bounded(cache, file, tmp_path, tokenizer, monkeypatch):
    for number in range(6):
        load(file, tokenizer, system_prompt=f"Prompt {number}.")
        time.sleep(0.01)
    assert len(list(cache.iterdir())) == prompt_cache.OF_ONE_PATH
    (cache / ".old.prompts.1.tmp").write_text("left by a killed process")
    os.utime(cache / ".old.prompts.1.tmp", (1, 1))
    newest = max(cache.glob("*.prompts"), key=lambda one: one.stat().st_mtime)
    monkeypatch.setattr(prompt_cache, "CACHE_BYTES", int(1.5 * newest.stat().st_size))
    load(file, tokenizer, system_prompt="The last.")
    assert len(list(cache.iterdir())) == 1


def test_a_file_that_changes_while_it_is_read_is_not_kept(cache, file, tokenizer, monkeypatch):
    before = dataset._tokenize

    def appended(*words):
        with file.open("a") as end:
            end.write(json.dumps({"prompt": "new", "answer": "1"}) + "\n")
        return before(*words)

    monkeypatch.setattr(dataset, "_tokenize", appended)
    load(file, tokenizer)
    assert list(cache.iterdir()) == []


def test_values_that_json_would_change_are_not_kept(cache, tmp_path, tokenizer):
    arrow = pytest.importorskip("pyarrow")
    from datetime import date

    from pyarrow import parquet

    columns = {"prompt": [f"{i}?" for i in range(200)], "answer": ["1"] * 200}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    load(tmp_path / "a.parquet", tokenizer)
    assert len(list(cache.iterdir())) == 1
    parquet.write_table(arrow.table({**columns, "day": [date(2025, 1, 1)] * 200}), tmp_path / "b.parquet")
    prompts, _ = load(tmp_path / "b.parquet", tokenizer)
    assert prompts[0].columns["day"] == date(2025, 1, 1) and len(list(cache.iterdir())) == 1


def _start(path, cache, barrier, results):
    os.environ["SCALERL_CACHE"] = cache
    prompt_cache.LEAST_PROMPTS = 100
    tokenizer = byte_level()
    barrier.wait()
    for _ in range(5):
        prompts, _ = load(Path(path), tokenizer)
        results.put([(prompt.id, prompt.tokens) for prompt in prompts])
        for place in Path(cache).glob("prompts/*.prompts"):
            place.unlink(missing_ok=True)


@pytest.mark.slow
def test_processes_that_start_together_do_not_disturb_each_other(tmp_path, file):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    words = (str(file), str(tmp_path / "cache"), barrier, results)
    processes = [context.Process(target=_start, args=words) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in range(15)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert all(one == found[0] for one in found)
