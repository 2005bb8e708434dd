"""A whole run with adapters: separate processes, a resume to the same bits, a merged export and an adapter export."""

import pytest
import runs
import torch
from safetensors.torch import load_file

peft = pytest.importorskip("peft")

LORA = ["--model.lora.rank", "8", "--recipe.optimizer.learning_rate", "1e-2", "--steps", "12"]


@pytest.fixture(scope="module")
def run(lab_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("lora") / "run"
    return path, runs.train(lab_model, path, *LORA)


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_bits(run, lab_model, tmp_path):
    whole, _ = run
    runs.train(lab_model, tmp_path / "stopped", *LORA, "--steps", "6")  # an evaluation is due there in any case
    runs.finish("resume", str(tmp_path / "stopped"), "--steps", "12")
    assert runs.outcome(tmp_path / "stopped") == runs.outcome(whole)
    adapters = [load_file(path / "adapter/adapter_model.safetensors") for path in (whole, tmp_path / "stopped")]
    assert len(adapters[0]) == 28 and all(torch.equal(adapters[0][key], adapters[1][key]) for key in adapters[0])
