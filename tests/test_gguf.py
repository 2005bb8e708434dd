"""GGUF files: the converted directory equals the model from which the file was written, for all readers."""

import json
import os

import pytest
import torch
from tiny_models import tiny_model

from scalerl.config import HuggingFaceModel, RunConfig
from scalerl.config.base import replace
from scalerl.core.errors import ConfigError
from scalerl.models import gguf as module
from scalerl.models.gguf import converted, is_gguf, sizes
from scalerl.models.loading import load_tokenizer
from scalerl.models.policy import load_policy
from scalerl.models.sizes import sizes_of

gguf = pytest.importorskip("gguf")

WORDS = ["<pad>", "<eos>", "Ġ", *(chr(ord("a") + i) for i in range(26)), *"0123456789+-=:;,.?!"]
WORDS += ["ab"]  # one merge
LLAMA_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in whole:
        return f"{whole[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{LLAMA_NAMES[rest]}.{kind}"


def interleaved(weight, heads):
    """Return a weight with its heads' rows in the order of llama.cpp's convert_hf_to_gguf.py (`LlamaModel.permute`)."""
    rows = weight.shape[0]
    return weight.reshape(heads, 2, rows // heads // 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, model, architecture="llama", without=()):
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(WORDS)
    writer.add_token_merges(["a b"])
    writer.add_token_types([3, 3] + [1] * (len(WORDS) - 2))
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}=")
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.named_parameters():
        if any(word in name for word in without):
            continue
        values = tensor.detach().numpy()
        kind = next((kind for kind in heads if kind in name), None)
        writer.add_tensor(gguf_name(name), interleaved(values, heads[kind]) if kind else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    model = tiny_model("llama-untied", vocab_size=len(WORDS))
    return model, write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model)


def test_the_converted_model_gives_the_same_logits(written, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path))
    model, path = written
    directory = converted(str(path), "float32")
    assert directory.parent == tmp_path and {"config.json", "model.safetensors"} < set(os.listdir(directory))
    assert "quantization_config" not in json.loads((directory / "config.json").read_text())
    policy = load_policy(str(directory))
    tokens_BT = torch.tensor([[3, 9, 4, 30, 31, 7]])
    with torch.no_grad():
        torch.testing.assert_close(policy.model(tokens_BT).logits, model(tokens_BT).logits, rtol=1e-4, atol=1e-4)
    policy.model.save_pretrained(tmp_path / "export")  # as a run does at its end
    assert (tmp_path / "export" / "model.safetensors").exists()
    tokenizer = load_tokenizer(str(directory))
    assert tokenizer.encode("abc") == [WORDS.index("ab"), WORDS.index("c")]
    assert tokenizer.eos_token == "<eos>" and tokenizer.chat_template.endswith("=")


def test_a_file_is_converted_once_and_again_after_a_change(written, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "copy.gguf"
    path.write_bytes(written[1].read_bytes())
    first = converted(str(path), "float32")
    monkeypatch.setattr(module, "_read", lambda *args: pytest.fail("converted twice"))
    assert converted(str(path), "float32") == first
    monkeypatch.undo()
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    os.utime(path, ns=(1, 1))
    assert converted(str(path), "float32") != first
    assert len(list((tmp_path / "cache").iterdir())) == 2  # no temporary directory is left


def test_the_plan_reads_the_sizes_from_the_files_header(written):
    model, path = written
    found = sizes(str(path))
    assert found["hidden_size"] == 32 and found["num_key_value_heads"] == 2 and found["vocab_size"] == len(WORDS)
    assert found["tie_word_embeddings"] is False
    config = replace(RunConfig(), model=HuggingFaceModel(path=str(path)), data=({"kind": "file", "path": "x.jsonl"},))
    matrices = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    assert sizes_of(config).sizes.params == matrices


def test_a_gguf_file_is_recognized_by_its_suffix_or_first_bytes(written, tmp_path):
    other = tmp_path / "model.bin"
    other.write_bytes(written[1].read_bytes()[:64])
    assert is_gguf("nowhere.GGUF") and is_gguf(str(other))
    assert not is_gguf(str(tmp_path)) and not is_gguf("org/name")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: write_gguf(path, tiny_model("llama", vocab_size=len(WORDS)), "unheard-of"), "unheard-of"),
        (lambda path: write_gguf(path, tiny_model("llama", vocab_size=len(WORDS)), without=["up_proj"]),
         "lacks 2 of the model's weights, the first is model.layers.0.mlp.up_proj.weight"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_refused_with_the_reason_and_nothing_is_cached(make, message, tmp_path, monkeypatch):
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "wrong.gguf"
    make(path)
    with pytest.raises(ConfigError, match=message):
        converted(str(path), "float32")
    assert not list((tmp_path / "cache").glob("*"))
