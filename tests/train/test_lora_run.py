"""A whole run with adapters: separate processes, a resume to the same bits, a merged export and an adapter export."""

import json

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


@pytest.mark.slow
def test_the_exported_model_equals_the_base_with_the_exported_adapter(run, lab_model):
    path, _ = run
    model, base = load_file(path / "model/model.safetensors"), load_file(lab_model / "model.safetensors")
    adapter = load_file(path / "adapter/adapter_model.safetensors")
    config = json.loads((path / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (8, 32.0, str(lab_model))
    adapted = {key.removeprefix("base_model.model.").removesuffix(".lora_A.weight") for key in adapter if "_A." in key}
    assert len(adapted) == 14 and base.keys() == model.keys()
    for name in base:
        expected, module = base[name], name.removesuffix(".weight")
        if module in adapted:
            key = f"base_model.model.{module}"
            expected = expected + 4.0 * adapter[f"{key}.lora_B.weight"] @ adapter[f"{key}.lora_A.weight"]
            assert not torch.equal(model[name], base[name])
        torch.testing.assert_close(model[name], expected, atol=1e-7, rtol=1e-6)
