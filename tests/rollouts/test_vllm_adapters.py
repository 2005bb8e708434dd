"""Adapters that travel to vLLM without the model: with a real server, by replay, and without vLLM up to its routes.

Run: SCALERL_VLLM_PYTHON=.venv-vllm/bin/python pytest -m vllm -s.
"""

import json
import time
import warnings
from pathlib import Path

import pytest
import torch
from fake_vllm import STOP, FakeVllm
from tiny_models import tiny_model
from vllm_setup import CPU, PATIENCE, PLAIN, PYTHON, REAL, SIZES, agree, direct, drain, prompts_of, requests, wait_for

from scalerl.core.errors import ConfigError
from scalerl.core.rng import stream_key
from scalerl.training.config import read_config
from scalerl.training.config.base import replace
from scalerl.training.config.model import Lora
from scalerl.training.engines.engine import Request, Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.process_engine import EngineDied
from scalerl.training.engines.replay import largest_difference
from scalerl.training.engines.vllm import adapters
from scalerl.training.engines.vllm.adapters import AdapterChannel, AdapterTransfer
from scalerl.training.engines.vllm.checks import Needs
from scalerl.training.engines.vllm.client import vllm_client
from scalerl.training.engines.vllm.server import ADAPTERS, ServerSpec, VllmServer, command, environment
from scalerl.training.loop.resolve import place_processes
from scalerl.training.models.lora import LoraPolicy
from scalerl.training.models.policy import Policy
from scalerl.training.models.weights import WeightLayout
from scalerl.training.placement.choices import policy_spec

pytest.importorskip("peft")

LORA = Lora(rank=4, alpha=8.0)
LONG = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=400)
NEEDS = Needs(vocabulary=48, positions=900, sequences=12, backend=ADAPTERS)


def adapted(name, dtype, version, lora=LORA):
    """Return the base model with adapters that change its log-probabilities by a few tenths of a nat."""
    policy = LoraPolicy(Policy(tiny_model(name, 7, **SIZES).to(dtype)), lora, seed=version)
    generator = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for key, parameter in policy.trained():
            if ".lora_B." in key:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy


# ------------------------------------------------------------------------------------------------------ a real server


@pytest.fixture(scope="module", params=[("qwen3", "float32")], ids="-".join)
def started(request, tmp_path_factory):
    """Return (server, versions by number, their channel)."""
    name, dtype = request.param
    path = tmp_path_factory.mktemp(name)
    tiny_model(name, 7, **SIZES).to(getattr(torch, dtype)).save_pretrained(path / "model")
    versions = {version: adapted(name, getattr(torch, dtype), version) for version in range(3)}
    channel = AdapterChannel(path / "weights", WeightLayout.of(versions[0].adapters()), LORA)
    for version, policy in versions.items():
        channel.send(version, policy.adapters())
    server = VllmServer(
        ServerSpec(
            model=str(path / "model"), max_model_len=900, max_num_seqs=12, log=path / "vllm.log", python=PYTHON,
            dtype=dtype, fp32_head=True, backend=ADAPTERS, environment=CPU,
            extra=("--enforce-eager", *channel.server_arguments()),
        )
    )  # fmt: skip
    began = time.monotonic()
    server.wait_ready()
    print(f"\n{request.param}: ready after {time.monotonic() - began:.0f} s")
    yield server, versions, channel
    server.close()


@pytest.fixture
def engine(started):
    server, _, channel = started
    made, _ = direct(
        vllm_client(
            server, slots=(8, 4), rule=LONG, sampling=Sampling(), needs=NEEDS, transfer=AdapterTransfer(channel)
        )
    )
    made.swap(0)
    yield made
    made.client.stop()


def sampled(engine, prompts, name="real"):
    sent = [Request((i, 0), prompt, stream_key(name, i)) for i, prompt in enumerate(prompts)]
    engine.submit(sent)
    return sent


def pairs_of(finished, sent):
    prompts = prompts_of(sent)
    return [(prompts[done.id], done.rollout) for done in finished]


class TestServer:
    pytestmark = REAL

    def test_replaced_adapters_are_exact_in_sequences_under_way(self, started, engine):
        _, versions, _ = started
        sent, began = sampled(engine, [(5, 9, 2 + i % 7) for i in range(12)]), engine.work.tokens
        for version in (1, 2):
            wait_for(lambda version=version: engine.work.tokens > began + 300 * version, PATIENCE)
            asked = time.monotonic()
            engine.swap(version)
            wait_for(lambda version=version: engine.version == version, PATIENCE)
            print(f"swap {time.monotonic() - asked:.3f} s")
        pairs = pairs_of(drain(engine, PATIENCE), sent)
        assert len(pairs) == 12 and any(len(set(rollout.versions.tolist())) > 1 for _, rollout in pairs)
        difference = largest_difference(versions, pairs)
        print(difference)
        assert difference.mean < 1e-5

    def test_the_prefix_cache_of_a_replaced_adapter_is_not_used(self, started, engine):
        """A prompt of 400 tokens is in the cache when the next version gets it; its blocks have 128 on CPU."""
        _, versions, _ = started
        prompt = tuple(2 + (7 * i + i * i) % 40 for i in range(400))
        for version in (0, 1, 2, 1):
            engine.swap(version)
            wait_for(lambda version=version: engine.version == version, PATIENCE)
            sent = sampled(engine, [prompt] * 4, f"cached {version}")
            pairs = pairs_of(drain(engine, PATIENCE), sent)
            assert {int(v) for _, rollout in pairs for v in rollout.versions} == {version}
            difference = largest_difference(versions, pairs)
            print(version, difference)
            assert difference.mean < 1e-5


# --------------------------------------------------------------------------------------------------------- a fake one


def fake_engine(server, tmp_path, number=0):
    server.settings |= {"weight_transfer_config": None, "lora_config": {"max_lora_rank": 8}}
    layout = WeightLayout.of(adapted("qwen3", torch.float32, 0).adapters())
    channel = AdapterChannel(tmp_path / "weights", layout, LORA)
    needs = Needs(vocabulary=12, positions=200, sequences=12, backend=ADAPTERS)
    engine, _ = direct(vllm_client(
        server.address, slots=(8, 4), rule=PLAIN, sampling=Sampling(stop=(STOP,)), needs=needs,
        transfer=AdapterTransfer(channel, number),
    ))  # fmt: skip
    return engine, channel


def test_every_version_is_sampled_with_the_adapter_under_its_label_and_a_salt_of_its_own(tmp_path):
    with FakeVllm() as server:
        engine, channel = fake_engine(server, tmp_path)
        for version in (0, 3, 4):
            channel.send(version, [("a", torch.zeros(1))])
            engine.swap(version)
            sent = requests(6, first=10 * version)
            engine.submit(sent)
            finished = drain(engine)
            assert {int(v) for done in finished for v in done.rollout.versions} == {version}
            agree(finished, prompts_of(sent))
        assert {body["model"] for body in server.requests} == {"policy"}
        assert len({body["cache_salt"] for body in server.requests}) == 3
        loads = [call for call in server.calls if call in ("/v1/load_lora_adapter", "/collective_rpc")]
        assert loads == ["/v1/load_lora_adapter", *["/collective_rpc"] * 3]
        assert not any("update_weights" in call for call in server.calls)
        engine.client.stop()
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == [
        f"version_{version:08d}.safetensors" for version in (0, 3, 4)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no_load", "wrong_label"])
def test_a_server_that_does_not_take_an_adapter_is_lost(fault, tmp_path):
    with FakeVllm() as server:
        engine, channel = fake_engine(server, tmp_path)
        channel.send(1, [("a", torch.zeros(1))])
        server.faults[fault] = 1 << 30
        engine.swap(1)
        with pytest.raises(EngineDied, match=r"No adapter found|reports version 0"):
            while True:
                engine.poll(0.05)
        engine.client.stop()


def test_a_server_without_adapters_is_an_error_before_the_run(tmp_path):
    with FakeVllm() as server, pytest.raises(ConfigError, match="takes no adapters; start it with --enable-lora"):
        server.settings["lora_config"] = None
        layout = WeightLayout.of(adapted("qwen3", torch.float32, 0).adapters())
        updates = AdapterTransfer(AdapterChannel(tmp_path, layout, LORA))
        needs = Needs(vocabulary=12, positions=200, sequences=12, backend=ADAPTERS)
        vllm_client(
            server.address, slots=(8, 4), rule=PLAIN, sampling=Sampling(stop=(STOP,)), needs=needs, transfer=updates
        )


def test_what_a_killed_engine_held_is_removed(tmp_path):
    layout = WeightLayout.of(adapted("qwen3", torch.float32, 0).adapters())
    channel = AdapterChannel(tmp_path, layout, LORA)
    channel.send(1, [("a", torch.zeros(1))])
    first, other = AdapterTransfer(channel, 0), AdapterTransfer(channel, 1)
    left, kept = first.hold(1), other.hold(1)
    held = {file.name for file in left.iterdir()}
    assert held == {"adapter_config.json", "adapter_model.safetensors"}
    AdapterTransfer(channel, 0)
    assert not left.exists() and kept.exists()
    with pytest.raises(EngineDied, match="version 2 of the weights was requested"):
        first.hold(2)
    AdapterChannel(tmp_path, layout, LORA)  # the run is resumed
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------- what is sent, and the choice


def test_peft_applies_the_files_that_a_server_gets_to_the_base_model(tmp_path):
    peft = pytest.importorskip("peft")
    policy = adapted("qwen3", torch.float32, 1)
    channel = AdapterChannel(tmp_path, WeightLayout.of(policy.adapters()), LORA)
    channel.send(1, policy.adapters())
    held = AdapterTransfer(channel).hold(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft 0.21 uses a deprecated name of transformers 5.23
        theirs = peft.PeftModel.from_pretrained(tiny_model("qwen3", 7, **SIZES), held)
    tokens = torch.arange(2, 30)[None]
    with torch.no_grad():
        expected, ours = (one(input_ids=tokens, use_cache=False).logits for one in (theirs, policy.model))
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    settings = json.loads((held / "adapter_config.json").read_text())
    ends = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert settings["r"] == 4 and settings["lora_alpha"] == 8.0 and settings["target_modules"] == ends
    words = channel.server_arguments()
    assert words[words.index("--max-lora-rank") + 1] == "8" and list(words[-7:]) == ends


def model_of(tmp_path, name):
    tiny_model(name).save_pretrained(tmp_path / name)
    return str(tmp_path / name)


def config_of(path, *words):
    base = ["--model", path, "--model.lora.rank", "8", "--placement.engine", "vllm"]
    config = read_config(None, [*base, *words])
    return replace(config, hardware=replace(config.hardware, device="cpu", dtype="float32"))


def vllm_source(place):
    """Write the parts of vLLM's source that tell whether it has adapters for an architecture."""
    models = place / "vllm/model_executor/models"
    models.mkdir(parents=True)
    (models / "registry.py").write_text(
        'MODELS = {\n    "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),\n'
        '    "MistralForCausalLM": (\n        "mistral",\n        "MistralForCausalLM",\n    ),\n'
        '    "GPT2LMHeadModel": ("gpt2", "GPT2LMHeadModel"),\n}\n'
    )
    (models / "qwen3.py").write_text("class Qwen3ForCausalLM(nn.Module, SupportsLoRA, SupportsPP): ...\n")
    (models / "mistral.py").write_text(
        "from vllm.model_executor.models.qwen3 import (\n    Qwen3ForCausalLM,\n)\n"
        "class MistralForCausalLM(Qwen3ForCausalLM): ...\n"
    )
    (models / "gpt2.py").write_text("class GPT2LMHeadModel(nn.Module, SupportsPP): ...\n")
    return place / "vllm"


@pytest.mark.parametrize(
    ("name", "words", "channel", "reason"),
    [
        ("qwen3", (), "adapters", ""),
        ("qwen3", ("--placement.servers", '["http://gpu-7:8000"]'), "directory", "servers given by address"),
        ("qwen3", ("--model.lora.rank", "600"), "directory", "up to rank 512"),
        ("qwen3-moe", ("--model.lora.targets", '["q_proj"]'), "directory", "a mixture"),
        ("gpt2", (), "directory", "cannot load adapters of GPT2LMHeadModel"),
    ],
)
def test_adapters_are_sent_where_vllm_can_load_them_and_else_a_note_says_why_not(
    name, words, channel, reason, tmp_path, monkeypatch
):
    source = vllm_source(tmp_path)
    monkeypatch.setattr(adapters, "_package", lambda python: source)
    resolved = place_processes(config_of(model_of(tmp_path, name), *words))
    config, notes = resolved.config, resolved.notes
    assert config.rollouts.weights == channel
    assert policy_spec(config, "m").sent == ("adapters" if channel == "adapters" else "checkpoint")
    assert len(notes) == bool(reason) and all("merged weights" in note and reason in note for note in notes)


def test_adapters_that_no_engine_of_the_run_can_load_are_an_error(tmp_path):
    words = ("--rollouts.weights", "adapters", "--placement.servers", '["http://gpu-7:8000"]')
    with pytest.raises(ConfigError, match=r"rollouts.weights: got 'adapters'.*allowed: auto, "):
        config_of(model_of(tmp_path, "qwen3"), *words)


def test_an_architecture_has_adapters_if_its_class_or_a_base_of_it_has(tmp_path):
    source = vllm_source(tmp_path)
    names = ("Qwen3ForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel", "UnknownForCausalLM")
    assert [adapters.has_adapter_layers(source, name) for name in names] == [True, True, False, False]


def test_the_server_of_a_run_is_started_for_the_adapters(tmp_path):
    spec = ServerSpec("m", 10, 10, Path("log"), backend=ADAPTERS, extra=("--enable-lora",))
    line = command(spec, 8000, "name")
    assert line[line.index("--worker-extension-cls") + 1] == "scalerl_adapters.WorkerExtension"
    assert "--weight-transfer-config" not in line
    assert environment(spec, {})["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment(ServerSpec("m", 10, 10, Path("log")), {})
