"""Hub branches and tags are recorded as their commits when a run starts."""

import huggingface_hub
import pytest
from huggingface_hub.hf_api import DatasetInfo, ModelInfo

from scalerl.training.config import parse_config, read_config, to_toml
from scalerl.training.loop.resolve import pinned

COMMITS = {
    ("Qwen/Qwen3-0.6B", "main", "model"): "a" * 40,
    ("openai/gsm8k", "main", "dataset"): "b" * 40,
    ("HuggingFaceH4/aime_2024", "v1", "dataset"): "c" * 40,
}


@pytest.fixture
def asked(monkeypatch):
    """A fake hub with three repositories; returns the list of requests."""
    seen = []

    def repo_info(self, repo_id, *, revision, repo_type, timeout):
        seen.append((repo_id, revision, repo_type))
        if seen[-1] not in COMMITS:
            raise ConnectionError("no route to the hub\nmore")
        kind = ModelInfo if repo_type == "model" else DatasetInfo
        return kind(id=repo_id, sha=COMMITS[seen[-1]])

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", repo_info)
    return seen


def config(tmp_path, model='path = "Qwen/Qwen3-0.6B"', suite='{ path = "aime-24", revision = "v1" }'):
    (tmp_path / "own.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    (tmp_path / "run.toml").write_text(
        f'suites = [{suite}, "{tmp_path}/own.jsonl"]\n[model]\nkind = "hf"\n{model}\n'
        '[data]\nkind = "file"\npath = "gsm8k"\n'
    )
    return read_config(tmp_path / "run.toml", [])


def test_hub_models_and_data_sets_get_commits_and_files_do_not_change(tmp_path, asked):
    notes = []
    resolved = pinned(config(tmp_path), notes.append)
    assert resolved.model.revision == "a" * 40
    assert [task.revision for task in resolved.data] == ["b" * 40, "c" * 40, "main"]
    assert asked == list(COMMITS) and notes == []
    again = parse_config(to_toml(resolved), "config.toml")
    assert again == resolved and pinned(again, notes.append) == resolved
    assert asked == list(COMMITS)  # a commit is not looked up


def test_an_unresolved_revision_is_kept_with_a_note(tmp_path, asked):
    notes = []
    before = config(tmp_path, suite='"mbpp"')
    resolved = pinned(before, notes.append)
    assert [task.revision for task in resolved.data] == ["b" * 40, "main", "main"]
    assert notes == [
        "google-research-datasets/mbpp: the commit of revision 'main' could not be looked up and is not recorded "
        "(no route to the hub)"
    ]


def test_local_models_have_no_commit(tmp_path, asked):
    (tmp_path / "directory").mkdir()
    resolved = pinned(config(tmp_path, model=f'path = "{tmp_path}/directory"'), lambda text: None)
    assert resolved.model.revision == "main" and {kind for _, _, kind in asked} == {"dataset"}
