"""The suite `humaneval` end to end: a table like the hub's, rows, tests, and programs in the sandbox."""

import json

import pytest
from texts import Tokenizer

from scalerl.config import RunConfig, read_config
from scalerl.prompts.dataset import load_prompts
from scalerl.tasks.code_tests import read_tests

datasets = pytest.importorskip("datasets")
pytest.importorskip("pyarrow")

ROWS = [
    {
        "task_id": "Own/0",
        "prompt": 'def largest_gap(xs: list) -> int:\n    """Largest difference of neighbors.\n    >>> '
        'largest_gap([1, 4, 2])\n    3\n    """\n',
        "canonical_solution": "    return max(abs(a - b) for a, b in zip(xs, xs[1:]))\n",
        "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate([1, 4, 2]) == 3\n"
        "    assert candidate([5, 1]) == 4\n",
        "entry_point": "largest_gap",
    },
    {
        "task_id": "Own/1",
        "prompt": 'def shout(word: str) -> str:\n    """The word in capitals."""\n',
        "canonical_solution": "    return word.upper()\n",
        "test": "def check(candidate):\n    assert candidate('ab') == 'AB'\n",
        "entry_point": "shout",
    },
]
"""Two made-up rows with the five columns of openai/openai_humaneval."""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one set, a local copy in the layout that `datasets` reads; returns the recorded requests."""
    table = tmp_path / "hub/openai/openai_humaneval/openai_humaneval"
    table.mkdir(parents=True)
    datasets.Dataset.from_list(ROWS).to_parquet(table / "test-00000-of-00001.parquet")
    asked, load_dataset = [], datasets.load_dataset

    def local(name, *subset, revision, download_config, **settings):
        asked.append((name, subset, settings["split"], revision))
        return load_dataset(str(tmp_path / "hub" / name), cache_dir=str(tmp_path / "cache"), **settings)

    monkeypatch.setattr(datasets, "load_dataset", local)
    return asked


def run_with_suite(tmp_path) -> RunConfig:
    (tmp_path / "sums.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{a}+1", "answer": str(a + 1)}) + "\n" for a in range(9))
    )
    (tmp_path / "run.toml").write_text(
        'suites = ["humaneval"]\n[model]\nkind = "hf"\npath = "m"\n'
        f'[data]\nkind = "file"\npath = "{tmp_path}/sums.jsonl"\n'
    )
    words = ["--evaluation.prompts", "4", "--recipe.prompts_per_step", "2", "--scoring.workers", "1"]
    return read_config(tmp_path / "run.toml", words)


def test_a_named_suite_is_read_from_the_hub_and_held_out_completely(tmp_path, hub):
    config = run_with_suite(tmp_path)
    assert config.tasks == ["math", "humaneval"] and config.held_out(config.data[1]) == 164
    split = load_prompts(config, Tokenizer())
    assert hub == [("openai/openai_humaneval", (), "test", "main")]
    prompts = sorted((p for p in split.held_out if p.task == "humaneval"), key=lambda prompt: prompt.where)
    assert [prompt.text for prompt in prompts] == [row["prompt"] for row in ROWS]
    assert [prompt.where for prompt in prompts] == [f"openai/openai_humaneval[test] row {n}" for n in (1, 2)]
    assert not any(prompt.task == "humaneval" for prompt in split.training) and len(split.training) == 5
    for prompt, row in zip(prompts, ROWS, strict=True):
        assert read_tests(prompt.columns).tests == row["test"]
