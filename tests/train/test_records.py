"""The records of sampled rollouts: replayed with the exported model, and damage."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import runs
from texts import rollout

import scalerl
from scalerl.core.errors import ConfigError
from scalerl.models.policy import load_policy
from scalerl.rollouts.replay import largest_difference
from scalerl.training.rollout_rows import packed, unpacked
from scalerl.types import Rollout

ON_POLICY = ["--recipe.off_policy.max_lag", "0", "--evaluation.every", "1"]


@pytest.mark.slow
def test_a_record_replayed_with_the_exported_model_has_the_recorded_log_probabilities(lab_model, tmp_path):
    """Without staleness, the batch of step 2 is sampled by the weights that a run of one step exports."""
    path = tmp_path / "run"
    runs.train(lab_model, path, *ON_POLICY, "--steps", "1")
    shutil.copytree(path / "model", tmp_path / "exported")
    with (path / "rollouts/samples.bin").open("ab") as file:
        file.write(b"PK half a record")  # a kill in the middle of a write
    runs.finish("resume", str(path), "--steps", "2")
    samples = [one for one in scalerl.load(path).samples() if one["step"] == 2]
    assert len(samples) == 4  # generations_per_prompt
    pairs = []
    for one in samples:
        assert set(one["versions"].tolist()) == {1} and one["sampled"].sum() > 5
        arrays = [one[name] for name in ("tokens", "logps", "versions", "sampled")]
        pairs.append((one["prompt_tokens"].tolist(), Rollout(*arrays, one["truncated"], one["interrupted"])))
    exported = load_policy(str(tmp_path / "exported"), dtype="float32")
    assert largest_difference({1: exported}, pairs).largest < 2e-5
    before = load_policy(str(lab_model), dtype="float32")
    assert largest_difference({1: before}, pairs).largest > 1e-3  # other weights give other values


@pytest.mark.slow
def test_log_probabilities_under_top_p_can_be_recomputed_from_the_records(lab_model, tmp_path):
    words = ["--recipe.top_p", "0.8", "--steps", "1", "--evaluation.every", "1", "--recipe.off_policy.max_lag", "0"]
    runs.train(lab_model, tmp_path / "run", *words)
    policy, pairs = load_policy(str(lab_model), dtype="float32"), []
    for one in scalerl.load(tmp_path / "run").samples():
        arrays = [one[name] for name in ("tokens", "logps", "versions", "sampled")]
        nucleus = (one["nucleus_sizes"], one["nucleus_ids"])
        made = Rollout(*arrays, one["truncated"], one["interrupted"], nucleus=nucleus)
        pairs.append((one["prompt_tokens"].tolist(), made))
    assert len(pairs) == 4 and largest_difference({0: policy}, pairs).largest < 2e-5
    whole = [(prompt, replace(made, nucleus=None)) for prompt, made in pairs]
    assert largest_difference({0: policy}, whole).largest > 1e-2  # over the whole vocabulary the values are others


@pytest.mark.parametrize("nucleus", [None, ([2, 0], [3, 8])])
def test_a_damaged_record_is_an_error_and_an_unharmed_one_is_exact(nucleus):
    made = rollout([3, 1], [True, False], versions=[4, 5])
    if nucleus:
        made = replace(made, nucleus=tuple(np.asarray(part, np.int32) for part in nucleus))
    record = packed((7, 9), made)
    saved = unpacked(record)
    assert saved["prompt_tokens"].tolist() == [7, 9]
    for name in ("tokens", "logps", "versions", "sampled"):
        np.testing.assert_array_equal(saved[name], getattr(made, name))
        assert saved[name].dtype == getattr(made, name).dtype
    for name, part in zip(("nucleus_sizes", "nucleus_ids"), made.nucleus or (), strict=False):
        np.testing.assert_array_equal(saved[name], part)
    assert len(saved) == (7 if nucleus else 5)
    assert packed((7, 9), made) == record  # equal runs have equal files
    for end in range(0, len(record), 7):
        with pytest.raises(ValueError):
            unpacked(record[:end])
    for place in range(len(record)):
        changed = record[:place] + bytes([record[place] ^ 1]) + record[place + 1 :]
        try:
            arrays = unpacked(changed)
        except ValueError:
            continue
        assert all(np.array_equal(arrays[name], saved[name]) for name in saved)  # a byte without meaning


def test_a_run_without_its_records_is_a_one_line_error(tmp_path):
    from scalerl.config import RunConfig
    from scalerl.training.run_dir import RunDirectory

    run = RunDirectory.create(tmp_path / "run", RunConfig())
    run.add_samples([{"step": 1}], [packed((1,), rollout([0, 0]))])
    (sample,) = scalerl.load(run.path).samples()
    assert sample["step"] == 1 and sample["tokens"].tolist() == [0, 0]
    (run.path / "rollouts/samples.bin").unlink()
    with pytest.raises(ConfigError, match="restore") as caught:
        scalerl.load(run.path).samples()
    assert "\n" not in str(caught.value)
