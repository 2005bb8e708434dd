"""Prompt files: all formats can be read, and errors have file, line and field."""

import gzip
import json
import time

import pytest
from json_rows import lines

from scalerl.core.errors import ConfigError
from scalerl.training.config.data import PromptFile
from scalerl.training.prompts import files
from scalerl.training.prompts.layouts import prompt_rows

ROWS = [{"prompt": f"{i}+1=", "answer": str(i + 1), "level": i} for i in range(3)]
LINES = lines(ROWS)


def read(path, **fields):
    return list(prompt_rows(PromptFile(path=str(path), **fields)))


def parquet(path, rows):
    import pyarrow
    from pyarrow import parquet as files

    files.write_table(pyarrow.Table.from_pylist(rows), path)


def test_the_same_rows_come_from_jsonl_json_gzip_and_parquet(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "b.json").write_text(json.dumps(ROWS, indent=1))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    parquet(tmp_path / "d.parquet", ROWS)
    (tmp_path / "e.json").write_text(LINES)  # JSONL with the extension .json
    by_name = {
        name: [(row.prompt, row.answer, row.columns) for row in read(tmp_path / name)]
        for name in ("a.jsonl", "b.json", "c.jsonl.gz", "d.parquet", "e.json")
    }
    assert by_name["a.jsonl"] == [(row["prompt"], row["answer"], row) for row in ROWS]
    assert all(rows == by_name["a.jsonl"] for rows in by_name.values())


@pytest.mark.parametrize("empty", [b"\n", b" \t\r\n"], ids=["newlines", "blanks"])
def test_a_long_stretch_of_empty_lines_is_refused_at_once(tmp_path, empty):
    """1 MB of a compressed file can hold a billion of them."""
    many = empty * ((1 << 20) // len(empty) + 1)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES.encode()) + 200 * gzip.compress(many))
    began = time.process_time()
    with pytest.raises(ConfigError, match=rf"line {3 + (1 << 20) // len(empty) + 1}: more than 1 MiB of empty lines"):
        read(tmp_path / "a.jsonl.gz")
    assert time.process_time() - began < 5
    (tmp_path / "b.jsonl").write_bytes(many)
    with pytest.raises(ConfigError, match="more than 1 MiB of empty lines"):
        read(tmp_path / "b.jsonl")
    few = empty * 100_000  # between rows they are allowed
    (tmp_path / "c.jsonl").write_bytes(few.join(line.encode() + b"\n" for line in LINES.split("\n")))
    assert len(read(tmp_path / "c.jsonl")) == 3


def test_a_line_over_the_limit_is_refused_in_a_short_message(tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text(LINES + json.dumps({"prompt": "x" * (3 << 20), "answer": "1"}) + "\n")
    assert len(read(tmp_path / "p.jsonl")) == 4
    monkeypatch.setattr(files, "MOST_LINE_BYTES", 2 << 20)
    with pytest.raises(ConfigError, match="line 4: the line is longer than 2 MiB") as error:
        read(tmp_path / "p.jsonl")
    assert len(str(error.value)) < 400


# ------------------------------------------------------------------------------------------------------------- the hub


def test_a_hub_set_is_requested_by_name_subset_split_and_revision(monkeypatch):
    import datasets

    asked = {}

    def load_dataset(*words, **settings):
        asked.update({"words": words, **settings})
        return [{"question": "What is 1+1?", "answer": "1 + 1 = 2\n#### 2"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (row,) = prompt_rows(PromptFile(path="gsm8k", revision="v1.0"))
    assert asked["words"] == ("openai/gsm8k", "main") and (asked["split"], asked["revision"]) == ("train", "v1.0")
    assert (row.prompt, row.answer, row.source) == ("What is 1+1?", "2", "openai/gsm8k[train] row 1")
    list(prompt_rows(PromptFile(path="some/set", split="test", columns={"prompt": "question"}, answers="hashes")))
    assert asked["words"] == ("some/set",) and asked["split"] == "test"


def test_a_missing_hub_set_is_reported_with_the_request_and_a_similar_name(monkeypatch):
    import datasets

    def load_dataset(*words, **settings):
        raise RuntimeError("Dataset scripts are no longer supported\nmore")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ConfigError, match=r"'polaris'.*no longer supported"):
        read("polari")


def test_a_hub_set_of_files_is_fetched_file_by_file(monkeypatch, tmp_path):
    import huggingface_hub

    tests = json.dumps([{"input": "1", "output": "2"}])
    row = {"starter_code": "", "public_test_cases": tests, "private_test_cases": tests, "metadata": "{}"}
    for name, month in (("test5.jsonl", "2024-12"), ("test6.jsonl", "2025-02")):
        line = json.dumps({**row, "question_content": name, "contest_date": f"{month}-01"})
        (tmp_path / name).write_text(line + "\n")

    def fetch(repository, name, **settings):
        assert repository == "livecodebench/code_generation_lite" and settings["repo_type"] == "dataset"
        return str(tmp_path / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    lcb = PromptFile(set="livecodebench-2025", task="math", reward="a:b")  # reading the set does not need its verifier
    (only,) = prompt_rows(lcb)
    assert only.prompt.startswith("test6.jsonl") and only.columns["tests"] == 2 * json.loads(tests)

    def fail(*words, **settings):
        raise OSError("no network\nmore")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(ConfigError, match=r"test5.jsonl.*no network"):
        list(prompt_rows(lcb))


def test_nulls_that_arrow_puts_into_structs_are_no_values(tmp_path):
    tool = lambda name, argument: {"name": name, "parameters": {argument: {"type": "string"}}}  # noqa: E731
    rows = [{"prompt": "q", "answer": None, "tools": [tool("add", "left"), tool("say", "text")], "note": {"a": None}}]
    parquet(tmp_path / "tools.parquet", [*rows, {**rows[0], "note": {"a": 1}}])
    columns = [row.columns for row in read(tmp_path / "tools.parquet", reward="my:f")]
    assert columns[0]["tools"] == rows[0]["tools"] and "answer" in columns[0] and columns[0]["note"] == {}
    assert columns[1]["note"] == {"a": 1}
