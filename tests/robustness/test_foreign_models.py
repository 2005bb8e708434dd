"""Unusable models: each is refused with the file and its problem, and no code of the model runs."""

import ast
from pathlib import Path

import pytest
import torch
from tiny_models import tiny_model

import scalerl
from robustness.campaign import Case, check_here, write
from robustness.damage import (
    INDEX,
    OPENED,
    WEIGHTS,
    a_file,
    config,
    cut,
    gone,
    header,
    index,
    inside,
    pickled,
    pipe,
    sharded,
    tensors,
    text,
)
from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.models.files import check_model_files
from scalerl.training.models.loading import load_model
from scalerl.training.models.policy import load_policy
from scalerl.training.models.sizes import sizes_of

BROKEN = "not a complete safetensors file"
LAYER = "model.layers.0.mlp.up_proj.weight"
FILES = [
    ("weights: empty", text(WEIGHTS, b""), BROKEN),
    ("weights: cut at the end", cut(WEIGHTS, -1), BROKEN),
    ("weights: a header of 2**63 bytes", text(WEIGHTS, b"\xff" * 4096), BROKEN),
    ("weights: a shape of another size", header(lambda h: h[LAYER].update(shape=[1, 2])), BROKEN),
    ("weights: none", gone(WEIGHTS), "m has no weights"),
    ("weights: a missing part", sharded(gone("b.safetensors")), "lacks 1 of 2 files of weights, the first is b.saf"),
    ("weights: parts without an index", sharded(gone(INDEX)), f"has a.safetensors and no {INDEX}"),
    ("weights: an index without a map", sharded(text(INDEX, "{}")), "has no weight_map"),
    ("weights: an index out of the directory", sharded(index(x="../../x.safetensors")), "names the file '../../x.saf"),
    ("weights: a pickle", pickled, "pytorch_model.bin, a pickle, which is not read because it can run any code"),
    ("model: a safetensors file", a_file("m"), "is a file; give the directory"),
    ("config: none", gone("config.json"), "m has no config.json"),
    ("config: cut off", cut("config.json", 100), "config.json cannot be read as JSON"),
    ("config: a type that is a list", config(model_type=["qwen3"]), "allowed: text and a list of names"),
    ("config: a pipe", pipe("config.json"), "m/config.json is not a regular file"),
    ("model: an adapter", text("adapter_config.json", "{}"), "holds an adapter (adapter_config.json), not a model"),
    ("model: a run directory", inside, "; give m/model"),
]  # fmt: skip
"""Faults found in the files' headers, before torch is loaded."""


@pytest.mark.parametrize(("name", "change", "message"), FILES, ids=[name for name, *_ in FILES])
def test_a_damaged_model_is_refused_equally_by_every_command(model, name, change, message):
    change(model)
    for refuse in (lambda: check_model_files("m"), lambda: load_model("m", "main", "float32")):
        with pytest.raises(ConfigError) as caught:
            refuse()
        assert str(caught.value).startswith("model.path: ") and message in str(caught.value)
        assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)
    assert not (model.parent / OPENED).exists()


@pytest.mark.parametrize(
    "changes",
    [{"num_attention_heads": 0}, {"hidden_size": "wide"}, {"num_hidden_layers": None}, {"vocab_size": [1]}],
    ids=str,
)
def test_a_plan_refuses_invalid_sizes(model, changes):
    config(**changes)(model)
    with pytest.raises(ConfigError, match="decoder"):
        sizes_of(read_config(None, ["--model", "m", "--data", "d.jsonl"]).model)


def nan(name, value=float("nan")):
    return tensors(lambda held: held[name].view(-1)[:1].fill_(value))


def without(part):
    """Return a change that removes the tensors whose names contain a text."""
    return tensors(lambda held: [held.pop(name) for name in list(held) if part in name])


def own_code(model):
    named = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}
    config(model_type="own", auto_map=named)(model)
    text("own.py", f"open({OPENED!r}, 'w')")(model)


LOADED = [
    ("a missing tensor", without(LAYER), f"lacks 1 of the weights of a Qwen3ForCausalLM: {LAYER}"),
    ("a wider configuration", config(intermediate_size=64), "6 weights have other sizes than config.json gives"),
    ("more layers than weights", config(num_hidden_layers=3, layer_types=None), "lacks 11 of the weights"),
    ("fewer layers than weights", config(num_hidden_layers=1, layer_types=None), "has 11 weights that a"),
    ("NaN in a layer", nan(LAYER), f"1 weights hold NaN or infinity, the first is {LAYER}"),
    ("an unknown architecture", config(model_type="qwen99", architectures=["Qwen99ForCausalLM"]), "qwen99"),
    ("an encoder", config(model_type="bert", architectures=["BertForMaskedLM"]), "m"),
    ("sizes that are text", config(hidden_size="wide"), "allowed: a directory with config.json and weights"),
    ("custom code", own_code, "needs custom Python code (auto_map in its config.json), which is never run"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), LOADED, ids=[name for name, *_ in LOADED])
def test_a_model_that_can_only_be_loaded_in_part_is_refused(model, name, change, message, capfd):
    change(model)
    with pytest.raises(ConfigError) as caught:
        load_policy("m")
    assert str(caught.value).startswith("model.path: ") and message in str(caught.value)
    assert len(str(caught.value)) < 700 and "\n" not in str(caught.value)
    assert not (model.parent / OPENED).exists()
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "change",
    [
        lambda model: None,
        sharded(),
        config(architectures=None),
        lambda model: (model / "training_args.bin").write_bytes(b"x"),
        lambda model: config(auto_map={"AutoModelForCausalLM": "own.Own"})(model),  # built in, like Phi-3
    ],
)
def test_complete_models_load_with_tied_weights_shards_and_extra_files(model, change):
    change(model)
    assert torch.equal(load_policy("m").head_weight, tiny_model("qwen3").get_input_embeddings().weight)


def test_a_missing_path_is_refused_without_a_request_to_the_hub(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    none = "there is no such directory"
    for path, message in (("./none", none), ("..", "has no config.json"), ("a\0b", none)):
        with pytest.raises(ConfigError, match=message):
            check_model_files(path)


def test_no_call_that_loads_a_model_runs_code_of_the_model():
    """Every call of transformers that could run such code disables it."""
    asked = []
    for file in Path(scalerl.__file__).parent.rglob("*.py"):
        source = file.read_text()
        for node in ast.walk(ast.parse(source)) if "from_pretrained" in source else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("from_pretrained"):
                asked.append((file, {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}))
    assert len(asked) >= 5
    for file, named in asked:
        unsafe = named.get("trust_remote_code") != "False" and '"trust_remote_code": False' not in file.read_text()
        assert not unsafe, (file, named)


ROWS = '{"prompt": "1+1=", "answer": "2"}\n'


def broken(here):
    write("p.jsonl", ROWS)(here)
    write("m/config.json", '{"model_type": "qwen3"}')(here)
    write("m/model.safetensors", b"")(here)


VERBS = tuple(
    Case(f"model: {' '.join(words)}", words, broken, expect=expect)
    for words, expect in (
        (("train", "--model", "m", "--data", "p.jsonl"), "safetensors"),
        (("train", "--model", "x/y/z", "--data", "p.jsonl", "--dry-run"), "no such dir"),
        (("eval", "m", "--suite", "p.jsonl"), "safetensors"),
        (("plan", "--model", "p.jsonl", "--data", "p.jsonl", "--gpus", "4"), "is a file"),
    )
)


@pytest.mark.parametrize("case", VERBS, ids=lambda case: case.name)
def test_a_broken_model_is_one_line_and_changes_nothing(case, tmp_path, monkeypatch):
    check_here(case, tmp_path, monkeypatch)
