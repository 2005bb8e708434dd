"""Quantized checkpoints: FP8 and MXFP4 train in full precision, others are errors of one line; exports are checked."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.config.model import Lora
from scalerl.training.loop.run_model import check_sampled
from scalerl.training.models.loading import ExportFailed, load_model
from scalerl.training.models.lora import LoraPolicy
from scalerl.training.models.policy import load_policy
from scalerl.training.models.quantized import scaled_weight, unpacked_weights
from scalerl.training.models.weights import checkpoint_weights
from scalerl.training.placement.choices import policy_spec

SIZES = {
    "vocab_size": 48, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 64, "max_position_embeddings": 128, "tie_word_embeddings": False, "eos_token_id": 1,
    "initializer_range": 0.3,
}  # fmt: skip


def dense(**sizes):
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**{**SIZES, "intermediate_size": 256, **sizes}))


def mixture():
    torch.manual_seed(0)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts))


def rewrite(directory, weights, table):
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": table}))


def float8(weight, block):
    """Return an FP8 matrix and the scales of its blocks, one block after the other, and what both give."""
    rows, columns = weight.shape
    high, wide = block or (rows, columns)
    values, back = torch.empty(rows, columns, dtype=torch.float8_e4m3fn), torch.empty(rows, columns)
    scale = torch.empty(-(-rows // high), -(-columns // wide))
    for r in range(0, rows, high):
        for c in range(0, columns, wide):
            part = weight[r : r + high, c : c + wide]
            unit = part.abs().max() / 448
            values[r : r + high, c : c + wide] = (part / unit).to(torch.float8_e4m3fn)
            back[r : r + high, c : c + wide] = values[r : r + high, c : c + wide].float() * unit
            scale[r // high, c // wide] = unit
    return values, scale if block else scale[0, 0], back


def quantized(model, directory, block=(128, 128), suffix="_scale_inv", table=None, extra=()):
    """Write a model as an FP8 checkpoint; return the weights of its files in full precision."""
    model.save_pretrained(directory)
    plain, files = load_file(directory / "model.safetensors"), {}
    for name, weight in list(plain.items()):
        if weight.ndim == 2 and "layers" in name and not name.endswith("mlp.gate.weight"):
            files[name], files[name + suffix], plain[name] = float8(weight, block)
            files |= {name.removesuffix("weight") + other: torch.tensor(0.5) for other in extra}
        else:
            files[name] = plain[name] = weight.to(torch.bfloat16)
    table = table or {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block}
    rewrite(directory, files, table)
    return plain


COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
}
FP8 = {
    "blocks": (dense, {}, {}),
    "blocks that do not divide": (dense, {"intermediate_size": 320}, {}),
    "experts": (mixture, {}, {}),
    "one scale, other names": (dense, {}, {"block": None, "suffix": "_scale", "extra": ["input_scale"]}),
    "one scale for each row": (dense, {}, {"block": (1, 10**6), "suffix": "_scale", "table": COMPRESSED}),
}


@pytest.mark.parametrize("case", FP8)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_weights_are_loaded_and_exported_in_full_precision(tmp_path, case, dtype):
    make, sizes, how = FP8[case]
    plain = quantized(make(**sizes), tmp_path / "m", **how)
    policy = load_policy(str(tmp_path / "m"), dtype=dtype)
    assert {weight.dtype for _, weight in policy.weights()} == {getattr(torch, dtype)}
    sent = dict(checkpoint_weights(policy.model, policy.weights()))  # what vLLM gets
    policy.export(tmp_path / "out")
    exported = load_file(tmp_path / "out/model.safetensors")
    assert set(exported) == set(sent) == set(plain)
    for name, weight in plain.items():
        assert torch.equal(exported[name], weight.to(getattr(torch, dtype))), name
        assert torch.equal(sent[name], exported[name]), name
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == dtype
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=getattr(torch, dtype))
    tokens_BT = torch.arange(2, 10)[None]
    tolerance = 1e-4 if dtype == "float32" else 0.1  # a policy's products on a CPU round differently
    torch.testing.assert_close(again(tokens_BT).logits, policy.model(tokens_BT).logits, rtol=0, atol=tolerance)


def oss(directory):
    """Write a GPT-OSS checkpoint in MXFP4 of random bytes; return the experts' weights as transformers unpacks them."""
    torch.manual_seed(0)
    sizes = {**SIZES, "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2}
    GptOssForCausalLM(GptOssConfig(**sizes)).save_pretrained(directory)
    files, experts = load_file(directory / "model.safetensors"), {}
    for name, weight in list(files.items()):
        if name.endswith(("gate_up_proj", "down_proj")):
            count, inputs, outputs = weight.shape
            blocks = torch.randint(0, 256, (count, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(118, 126, (count, outputs, inputs // 32), dtype=torch.uint8)
            del files[name]
            files |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            experts[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    rewrite(directory, files, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return experts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_mxfp4_experts_are_loaded_and_exported_in_full_precision(tmp_path, dtype):
    experts = oss(tmp_path / "m")
    policy = load_policy(str(tmp_path / "m"), dtype=dtype)
    weights = dict(policy.weights())
    assert len(experts) == 4
    for name, weight in experts.items():
        assert torch.equal(weights[name].float(), weight), name
    policy.export(tmp_path / "out")
    again = dict(load_policy(str(tmp_path / "out"), dtype=dtype).weights())
    assert again.keys() == weights.keys() and all(torch.equal(again[name], weights[name]) for name in again)
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())


def test_bytes_of_mxfp4_are_unpacked():
    """0x21 holds 0.5 (lower bits 1) and 1 (2), 0xF7 holds 6 and -6; the exponent 128 doubles them."""
    blocks = torch.tensor([0x21, 0xF7] + [0] * 14, dtype=torch.uint8).view(1, 1, 1, 16)
    weights = unpacked_weights(blocks, torch.tensor([[[128]]], dtype=torch.uint8))
    assert weights.shape == (1, 32, 1) and weights.flatten()[:5].tolist() == [1.0, 2.0, 12.0, -12.0, 0.0]
    assert torch.equal(weights, unpacked_weights(blocks.view(1, 1, 16), torch.tensor([[[128]]], dtype=torch.uint8)))


def test_a_scale_covers_its_block():
    weight = torch.ones(3, 5).to(torch.float8_e4m3fn)
    grid = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    expected = [[1, 1, 2, 2, 3], [1, 1, 2, 2, 3], [4, 4, 5, 5, 6]]
    assert scaled_weight(weight, grid, (2, 2)).tolist() == expected
    assert scaled_weight(weight, torch.tensor([1.0, 2.0, 3.0]), None).tolist() == [[1.0] * 5, [2.0] * 5, [3.0] * 5]
    assert scaled_weight(weight, torch.tensor(2.0), None).tolist() == [[2.0] * 5] * 3
    for block in (None, (3, 2)):
        with pytest.raises(ConfigError, match=r"scales of \(2, 3\)"):
            scaled_weight(weight, grid, block)


def test_adapters_on_a_quantized_model_train_and_merge_in_full_precision(tmp_path):
    pytest.importorskip("peft")
    plain = quantized(dense(), tmp_path / "m")
    policy = LoraPolicy(load_policy(str(tmp_path / "m")), Lora(rank=2), seed=0)
    merged = dict(policy.weights())
    assert set(merged) == set(plain) and all(torch.equal(merged[name], plain[name].float()) for name in plain)
    for _, parameter in policy.trained():
        parameter.data.fill_(0.1)
    policy.export(tmp_path / "out")
    exported = load_file(tmp_path / "out/model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    # rank 2 of 0.1 x 0.1, times alpha / rank
    torch.testing.assert_close(exported[name], plain[name] + 0.02 * policy.adapter_config.lora_alpha / 2)


REFUSED = [
    ({"quant_method": "gptq", "bits": 4}, "gptq"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors (pack-quantized)"),
    ({"load_in_8bit": True}, "bitsandbytes"),
    ({}, "an unknown method"),
]


@pytest.mark.parametrize(("table", "method"), REFUSED, ids=[method for _, method in REFUSED])
def test_other_methods_are_an_error_that_says_what_helps(tmp_path, table, method):
    dense().save_pretrained(tmp_path / "m")
    rewrite(tmp_path / "m", load_file(tmp_path / "m/model.safetensors"), table)
    with pytest.raises(ConfigError) as caught:
        load_model(str(tmp_path / "m"), "main", "float32")
    text = str(caught.value)
    assert f"m is quantized with {method}, and training needs" in text and "\n" not in text
    assert "Use the model that it was made from" in text and ("dequantize()" in text) == (method == "bitsandbytes")


def test_weights_that_cannot_be_dequantized_are_an_error(tmp_path):
    quantized(dense(), tmp_path / "m")
    files, name = load_file(tmp_path / "m/model.safetensors"), "model.layers.1.mlp.up_proj.weight"
    for changed, message in (
        ({f"{name}_scale_inv": None}, "up_proj.weight is F8_E4M3 without a scale"),
        ({f"{name}_scale_inv": torch.ones(3, 7)}, r"scales of \(3, 7\)"),
        ({name: torch.zeros(256, 16, dtype=torch.int32)}, "is packed in I32"),
    ):
        kept = {key: value for key, value in {**files, **changed}.items() if value is not None}
        save_file(kept, tmp_path / "m/model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ConfigError, match=message):
            load_model(str(tmp_path / "m"), "main", "float32")


def test_an_export_that_does_not_hold_the_weights_is_an_error(tmp_path, monkeypatch):
    policy = load_policy(_saved(tmp_path / "m"))
    save = type(policy.model).save_pretrained

    def saves_others(model, directory):
        save(model, directory)
        weights = load_file(directory / "model.safetensors")
        weights["model.norm.weight"] += 1e-3
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

    def saves_half(model, directory):
        save(model, directory)
        (directory / "model.safetensors").unlink()

    for broken, message in ((saves_others, "in 1 weights, the first is model"), (saves_half, "no weights")):
        with monkeypatch.context() as patch, pytest.raises(ExportFailed, match=message):
            patch.setattr(type(policy.model), "save_pretrained", broken)
            policy.export(tmp_path / broken.__name__)


def _saved(directory):
    dense().save_pretrained(directory)
    return str(directory)


def test_a_run_with_servers_of_its_own_needs_a_model_in_full_precision(tmp_path):
    quantized(dense(), tmp_path / "m")
    policy = load_policy(str(tmp_path / "m"))
    words = ["--model", str(tmp_path / "m"), "--data", "d.jsonl", "--placement.engine", "vllm"]
    config = read_config(None, words)
    with pytest.raises(ConfigError, match=r"m in fp8, .*load_model as L; L\('OLD', 'main', 'bfloat16'\)"):
        check_sampled(config.placement, config.recipe, "eager", "cpu", policy_spec(config, str(tmp_path / "m")), policy)
    (tmp_path / "new").mkdir()
    load_model(str(tmp_path / "m"), "main", "bfloat16").save_pretrained(tmp_path / "new")  # what the message says
    check_sampled(config.placement, config.recipe, "eager", "cpu", policy_spec(config, str(tmp_path / "new")), policy)
