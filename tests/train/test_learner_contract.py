"""The contract of a learner: one process and one, two and three ranks make the same updates."""

import json
import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import transformers
from batches import change
from rank_builds import Bench, Misbehaving, learner_spec
from rank_builds import random_batch as batch
from safetensors.torch import load_file
from tiny_models import tiny_model

from scalerl.core.errors import ConfigError
from scalerl.core.plugins import PluginError
from scalerl.training.config import HuggingFaceModel, Lora, RunConfig
from scalerl.training.config.base import replace
from scalerl.training.config.mismatch import SequenceMask
from scalerl.training.config.recipe import SCALERL, AdamW, Reinforce
from scalerl.training.config.run import Hardware, LearnerSettings, Placement
from scalerl.training.engines.directory import DirectoryChannel
from scalerl.training.engines.shared_memory import SharedMemoryChannel
from scalerl.training.learner.base import BadGradient
from scalerl.training.learner.batch import StepSettings
from scalerl.training.learner.checkpoint import load_state
from scalerl.training.learner.experts import experts_of
from scalerl.training.learner.fsdp import balanced_split
from scalerl.training.learner.rank_processes import RankProcesses
from scalerl.training.learner.ranks import LearnerDied, LearnerGroup, single_learner
from scalerl.training.learner.single import SingleLearner
from scalerl.training.models.policy import Policy, load_policy
from scalerl.training.models.weights import WeightLayout

MODELS = ("qwen3", "qwen3-untied", "qwen3-moe", "qwen3-moe-untied")
FEW = "two experts"  # on three ranks, which split another axis
BIASED = "gpt-oss"  # experts with biases and transposed weights
GROUPS = [(1, "qwen3"), *((2, model) for model in MODELS), (3, "qwen3-untied"), (3, "qwen3-moe"), (3, FEW)]
CONFIG = RunConfig(
    recipe=replace(
        SCALERL,
        loss=Reinforce(),
        optimizer=AdamW(learning_rate=1e-3, warmup_steps=4, eps=1e-8),
        routing_replay="on",
    ),
    model=HuggingFaceModel(path="given to the ranks"),
    hardware=Hardware(device="cpu", dtype="float32", trainer_threads=1, generator_threads=1),
    learner=LearnerSettings(micro_batch_tokens=24, packing="padded"),
)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Directories of the models."""
    parent = tmp_path_factory.mktemp("models")
    for name in (*MODELS, BIASED):
        tiny_model(name).save_pretrained(parent / name)
    tiny_model("qwen3-moe", num_experts=2, num_experts_per_tok=1).save_pretrained(parent / FEW)
    return {name: str(parent / name) for name in (*MODELS, FEW, BIASED)}


class Benches:
    """Ranks by their number, started on first use and restarted after they were killed."""

    def __init__(self, paths, parent):
        self.paths, self.parent, self.started = paths, parent, {}
        layout = WeightLayout.of(tiny_model("qwen3").named_parameters())
        self.directory, self.memory = DirectoryChannel(parent / "weights"), SharedMemoryChannel(layout)

    def ranks(self, number):
        if number not in self.started or not self.started[number]._processes:
            meet = f"file://{self.parent}/meet-{number}-{time.monotonic_ns()}"
            parts = {"ranks": number, "init_method": meet}
            builds = [Bench(learner_spec(CONFIG, "", rank=rank, **parts)) for rank in range(number)]
            self.started[number] = RankProcesses(builds, [self.directory, self.memory], timeout_s=120)
        return self.started[number]

    def group(self, number, model="qwen3", config=CONFIG):
        ranks = self.ranks(number)
        ranks.call("use", config, self.paths[model], timeout_s=120)
        return LearnerGroup(ranks, [self.directory, self.memory], step_timeout_s=60, transfer_timeout_s=60)

    def single(self, model="qwen3", config=CONFIG):
        policy = load_policy(self.paths[model], dtype=config.hardware.dtype)
        return SingleLearner(policy, config.recipe, micro_batch_tokens=config.learner.micro_batch_tokens)

    def weights(self, learner):
        """Return a copy of what a learner sends."""
        learner.send(0, self.directory)
        received = dict(self.directory.receive(0))
        self.directory.drop(0)
        return received

    def gradients(self, learner, given):
        if isinstance(learner, LearnerGroup):
            return learner._ranks.call("gradients", given, timeout_s=60)[0]
        learner._add_gradients(given)
        copies = [master.grad.clone() for master in learner._masters]
        learner._discard_gradient()
        return copies

    def close(self):
        for ranks in self.started.values():
            ranks.close()


@pytest.fixture(scope="module")
def benches(paths, tmp_path_factory):
    made = Benches(paths, tmp_path_factory.mktemp("benches"))
    yield made
    made.close()


def on_mesh(data, expert):
    """Return the configuration of data x expert ranks."""
    return replace(CONFIG, placement=Placement(trainer_ranks=data * expert, expert_ranks=expert))


def routed(given, chosen):
    """Return a batch with the recorded experts of two per token and layer, which the trainer uses."""
    return change(given, experts_BTLK=chosen.to(torch.uint8))


def distance(found, expected):
    """Return the norm of the difference of lists of tensors, relative to the norm of the expected ones."""
    flat = [torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (found, expected)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


def untrained(given):
    return change(given, trained_BT=torch.zeros_like(given.trained_BT), weights_BT=torch.zeros_like(given.weights_BT))


def close(found, expected, atol):
    assert found.keys() == expected.keys() and len(found) > 10
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=atol, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


def equal(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


# ------------------------------------------------------------------------------------------------------------ split


def test_the_longest_rollouts_are_assigned_first_to_the_rank_with_the_fewest_tokens():
    # 9 -> rank 0 (9, 0); 8 -> rank 1 (9, 8); 6 -> rank 1 (9, 14); 5 -> rank 0 (14, 14); 2 -> rank 0 (16, 14)
    lengths = torch.tensor([5, 9, 2, 7, 8, 6])
    shares = balanced_split(lengths, torch.tensor([0, 1, 2, 4, 5]), 2)  # row 3 has no trained token
    assert [share.tolist() for share in shares] == [[1, 0, 2], [4, 5]]
    shares = balanced_split(torch.tensor([4, 4]), torch.tensor([0, 1]), 3)
    assert [share.tolist() for share in shares] == [[0], [1], []]  # more ranks than rollouts


@pytest.mark.slow
def test_all_ranks_run_the_same_number_of_micro_batches(benches):
    """7 rollouts on 3 ranks are 3, 2 and 2 of them; 24 tokens hold two rollouts of 12 tokens."""
    benches.group(3)
    plans = benches.ranks(3).call("micro_batches", batch(), timeout_s=60)
    assert sorted(plans, reverse=True) == [[2, 1], [2, 0], [2, 0]]
    assert benches.ranks(3).call("micro_batches", batch(rows=1), timeout_s=60) == [[1], [0], [0]]


# --------------------------------------------------------------------------------------------------------- the update


@pytest.mark.parametrize(("ranks", "model"), GROUPS)
@pytest.mark.slow
def test_gradient_and_twenty_updates_equal_those_of_one_process(benches, ranks, model):
    group, single = benches.group(ranks, model), benches.single(model)
    for rows in (7, 1):  # uneven shares, and fewer rollouts than ranks
        pairs = zip(benches.gradients(group, batch(rows)), benches.gradients(single, batch(rows)), strict=True)
        for number, (found, expected) in enumerate(pairs):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=lambda m, n=number: f"{n}: {m}")
    before = benches.weights(single)
    for number in range(20):
        given = batch(rows=(7, 6, 1, 4)[number % 4], seed=number)
        given = untrained(given) if number == 5 else given
        ours, theirs = group.step(given), single.step(given)
        for name, value in theirs.to_dict().items():
            assert ours.to_dict()[name] == pytest.approx(value, rel=1e-3, abs=1e-4), (number, name)
    assert group.updates == single.updates == 20
    after = benches.weights(single)
    close(benches.weights(group), after, atol=1e-4)
    assert max(float((after[name] - before[name]).abs().max()) for name in after) > 5e-3  # the weights changed


@pytest.mark.parametrize("option", [{"gradient_checkpointing": True}, {"packing": "packed"}])
def test_recomputed_activations_and_packing_change_no_gradient(benches, option):
    config = replace(CONFIG, learner=replace(CONFIG.learner, **option))
    sums = benches.gradients(benches.group(2, "qwen3", config), batch())
    for ours, expected in zip(sums, benches.gradients(benches.single(), batch()), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", ["qwen3", "qwen3-moe"])
def test_ranks_hold_their_part_of_the_reference_of_the_kl_term(benches, model):
    terms = replace(CONFIG.recipe, kl_coefficient=0.5, entropy_coefficient=0.1)
    config = replace(CONFIG, recipe=terms)
    group, single, without = benches.group(2, model, config), benches.single(model, config), benches.single(model)
    for number, rows in enumerate((7, 1, 6)):  # with 1, a rank has no rollout
        given = batch(rows, seed=number)
        ours, theirs = group.step(given).to_dict(), single.step(given).to_dict()
        without.step(given)
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4), number
    close(benches.weights(group), benches.weights(single), atol=1e-4)
    apart = [(a - b).detach().abs().max() for a, b in zip(single._masters, without._masters, strict=True)]
    assert max(map(float, apart)) > 1e-4


@pytest.mark.slow
def test_ranks_reject_the_rollouts_that_one_process_rejects_and_report_the_same_metrics(benches):
    given = batch()  # an untrained model: log-probabilities near -log 48
    behavior = -3.87 + 0.8 * torch.randn(given.rollouts.tokens_BT.shape, generator=torch.Generator().manual_seed(1))
    given = change(given, behavior_BT=behavior * given.trained_BT, settings=StepSettings(version=1))
    given = change(given, context_BT=torch.arange(12).expand(7, 12) % 2)
    config = replace(CONFIG, recipe=replace(CONFIG.recipe, mismatch=SequenceMask(keep=(0.3, 3.0))))
    group, single = benches.group(2, config=config), benches.single(config=config)
    pairs = zip(benches.gradients(group, given), benches.gradients(single, given), strict=True)
    for ours, expected in pairs:
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    ours, theirs = group.step(given), single.step(given)
    assert ours.to_dict() == pytest.approx(theirs.to_dict(), rel=1e-4, abs=1e-6)
    assert 0.1 < theirs.corrected_share < 0.9 and theirs.log_ratio_stale > 0.1 < theirs.log_ratio_fresh


@pytest.mark.slow
def test_bf16_ranks_compute_with_the_bf16_weights_that_the_engines_get(benches, tmp_path):
    config = replace(CONFIG, hardware=replace(CONFIG.hardware, dtype="bfloat16"))
    group, single = benches.group(2, "qwen3", config), benches.single("qwen3", config)
    ours, theirs = group.step(batch()), single.step(batch())
    in_fp32 = benches.single().step(batch())
    assert abs(ours.loss - theirs.loss) < 0.1 * abs(in_fp32.loss - theirs.loss)
    assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=0.01)
    sent = benches.weights(group)
    group.export(tmp_path / "ours")
    single.export(tmp_path / "plain")
    assert (tmp_path / "ours/config.json").read_text() == (tmp_path / "plain/config.json").read_text()
    assert {tensor.dtype for tensor in sent.values()} == {torch.bfloat16} and sent.keys() == benches.weights(
        single
    ).keys()


@pytest.mark.parametrize("poison", ["loss", "gradient"])
@pytest.mark.slow
def test_a_nonfinite_value_on_one_rank_raises_on_all_and_keeps_the_weights(benches, poison):
    group, single, given = benches.group(2), benches.single(), batch()
    before = benches.weights(group)
    if poison == "loss":
        bad = change(given, advantages_B=torch.where(torch.arange(7) == 6, math.nan, given.advantages_B))
    else:  # a finite loss, whose gradient's squares overflow
        bad = change(given, weights_BT=torch.where(torch.arange(7)[:, None] == 6, 1e25, 1.0) * given.weights_BT)
    with pytest.raises(BadGradient, match="the loss is nan" if poison == "loss" else "the gradient's norm is inf"):
        group.step(bad)
    assert group.updates == 0 and equal(benches.weights(group), before)
    ours, theirs = group.step(given), single.step(given)  # and the gradient is discarded
    assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
    assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
    close(benches.weights(group), benches.weights(single), atol=1e-5)


# -------------------------------------------------------------------------------------------------- experts on ranks


@pytest.mark.parametrize("mesh", [(2, 1), (1, 2), (2, 2)])
@pytest.mark.slow
def test_on_every_mesh_gradient_and_twenty_updates_of_a_mixture_equal_those_of_one_process(benches, mesh):
    group, single = (
        benches.group(math.prod(mesh), "qwen3-moe-untied", on_mesh(*mesh)),
        benches.single("qwen3-moe-untied"),
    )
    shape = (7, 12, 2)
    recorded = torch.rand(*shape, 4, generator=torch.Generator().manual_seed(0)).topk(2).indices
    on_one_rank = torch.tensor([1, 0]).expand(*shape, 2)  # experts 2 and 3 get no tokens
    for given in (batch(), batch(rows=1), routed(batch(), recorded), routed(batch(), on_one_rank)):
        assert distance(benches.gradients(group, given), benches.gradients(single, given)) < 1e-5
    for number in range(20):
        given = batch(rows=(7, 6, 1, 4)[number % 4], seed=number)
        ours, theirs = group.step(given), single.step(given)
        assert ours.to_dict() == pytest.approx(theirs.to_dict(), rel=1e-3, abs=1e-4)
    found, expected = benches.weights(group), benches.weights(single)
    assert distance([found[name] for name in expected], expected.values()) < 1e-6


@pytest.mark.slow
def test_a_checkpoint_of_1_x_2_ranks_resumes_on_2_x_1_and_back(benches, tmp_path):
    first = benches.group(2, "qwen3-moe", on_mesh(1, 2))
    for number in range(3):
        expected = first.step(batch(seed=number))
    for number, mesh in enumerate([(2, 1), (1, 2)]):
        (tmp_path / str(number)).mkdir()
        first.save(tmp_path / str(number))
        given = batch(seed=3 + number)
        expected, weights = first.step(given).to_dict(), benches.weights(first)
        first = benches.group(2, "qwen3-moe", on_mesh(*mesh))
        first.load(tmp_path / str(number), updates=3 + number)
        assert first.step(given).to_dict() == pytest.approx(expected, rel=1e-4, abs=1e-5)
        close(benches.weights(first), weights, atol=1e-6)


def test_meshes_and_models_that_do_not_fit_are_refused_with_their_numbers():
    with pytest.raises(ValueError, match="expert_ranks: got 3 with trainer_ranks 4; allowed: a divisor"):
        Placement(trainer_ranks=4, expert_ranks=3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 48}
    unfused = transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**sizes, num_local_experts=4))
    for model, ranks, message in (
        (tiny_model("qwen3"), 2, "got 2 for Qwen3ForCausalLM, a dense model; allowed: 1"),
        (tiny_model("qwen3-moe"), 3, "which has 4 experts per layer; allowed: a divisor"),
        (unfused, 2, "got 2 for Llama4ForCausalLM, whose 4 experts per layer are not fused"),
    ):
        with pytest.raises(ConfigError, match=message):
            experts_of(Policy(model), ranks)


# ---------------------------------------------------------------------------------------------------------- weights


def test_weights_in_shared_memory_equal_those_of_the_learner(benches):
    group, single = benches.group(2), benches.single()
    group.step(batch())
    single.step(batch())
    group.send(3, benches.memory)
    received = {name: tensor.clone() for name, tensor in benches.memory.receive(3).items()}
    benches.memory.drop(3)
    assert equal(received, benches.weights(group))
    close(received, benches.weights(single), atol=1e-6)


@pytest.mark.parametrize("expert", [1, 2])
def test_weights_that_ranks_send_to_vllm_equal_the_exported_checkpoint(benches, tmp_path, expert):
    recipe = replace(CONFIG.recipe, routing_replay="off")
    config = replace(CONFIG, recipe=recipe, placement=Placement(engine="vllm", trainer_ranks=2, expert_ranks=expert))
    group = benches.group(2, "qwen3-moe-untied", config)
    group.step(batch())
    group.export(tmp_path)
    exported = load_file(tmp_path / "model.safetensors")
    assert equal(benches.weights(group), exported) and "model.layers.1.mlp.experts.3.up_proj.weight" in exported


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3", "qwen3-moe-untied"])
def test_the_export_is_an_ordinary_model_with_the_learners_weights(benches, model, tmp_path):
    from transformers import AutoModelForCausalLM

    group, single = benches.group(2, model), benches.single(model)
    group.step(batch())
    group.export(tmp_path / "ours")
    single.export(tmp_path / "plain")
    assert sorted(os.listdir(tmp_path / "ours")) == sorted(os.listdir(tmp_path / "plain"))
    assert (tmp_path / "ours/config.json").read_text() == (tmp_path / "plain/config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    exported = {name: parameter.detach() for name, parameter in loaded.named_parameters()}
    assert equal(exported, benches.weights(group))
    assert not equal(exported, benches.weights(single))  # the other learner took no step


# ------------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("model", ["qwen3", "qwen3-moe-untied"])
@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_resumes_on_three_and_on_one(benches, model, tmp_path):
    two = benches.group(2, model)
    (tmp_path / "first").mkdir()  # as the store of checkpoints does
    (tmp_path / "later").mkdir()
    two.save(tmp_path / "first")
    for number in range(3):
        two.step(batch(seed=number))
    two.save(tmp_path / "later")
    expected = two.step(batch(seed=3))
    weights = benches.weights(two)
    for ranks in (3, 1):
        other = benches.group(ranks, model)
        other.step(batch(seed=9))  # its own moments and weights, which must be replaced
        other.load(tmp_path / "later", updates=3)
        assert other.step(batch(seed=3)).to_dict() == pytest.approx(expected.to_dict(), rel=1e-4, abs=1e-5)
        assert other.updates == 4
        close(benches.weights(other), weights, atol=1e-6)
    other.load(tmp_path / "first", updates=0)  # from before any update: no moments
    fresh = benches.single(model)
    for number in range(2):
        other.step(batch(seed=number))
        fresh.step(batch(seed=number))
    close(benches.weights(other), benches.weights(fresh), atol=1e-5)


def test_a_resume_with_equal_ranks_gives_the_same_bits(benches, tmp_path):
    two = benches.group(2)
    two.step(batch(seed=1))
    two.save(tmp_path)
    two.step(batch(seed=2))
    expected = benches.weights(two)
    again = benches.group(2)
    again.load(tmp_path, updates=1)
    again.step(batch(seed=2))
    assert equal(benches.weights(again), expected)


def moved(benches, model, path, steps):
    """Let learners of other sizes take turns: each saves, and the next loads; return what the last one sends."""
    order, learner = [1, 2, 1, 2, 3, 1], None
    for number, ranks in enumerate(order):
        before, learner = learner, benches.single(model) if ranks == 1 else benches.group(ranks, model)
        if before is not None:
            learner.step(batch(seed=9))  # its own moments and weights, which must be replaced
            learner.load(path / str(number - 1), updates=steps * number)
            assert learner.updates == steps * number
        for step in range(steps):
            learner.step(batch(seed=steps * number + step))
        (path / str(number)).mkdir()
        learner.save(path / str(number))
    return learner, steps * len(order)


def state(path):
    """Return the tensors of a checkpoint that one process has written."""
    return load_state(path, "learner")


@pytest.mark.parametrize("updates", [0, 2])
def test_a_checkpoint_has_the_same_bits_after_a_way_through_ranks(benches, updates, tmp_path):
    """Before the first update there are no moments."""
    first = benches.single()
    for seed in range(updates):
        first.step(batch(seed=seed))
    for name in ("one", "two", "again"):
        (tmp_path / name).mkdir()
    first.save(tmp_path / "one")
    two = benches.group(2)
    two.step(batch(seed=9))
    two.load(tmp_path / "one", updates)
    two.save(tmp_path / "two")
    again = benches.single()
    again.step(batch(seed=9))
    again.load(tmp_path / "two", updates)
    again.save(tmp_path / "again")
    assert equal(state(tmp_path / "again"), state(tmp_path / "one"))
    assert (f"step.{next(iter(benches.weights(again)))}" in state(tmp_path / "one")) == bool(updates)


def test_a_checkpoint_of_another_model_is_refused(benches, tmp_path):
    two, single = benches.group(2), benches.single()
    for name in ("two", "one"):
        (tmp_path / name).mkdir()  # as the store of checkpoints does
    two.save(tmp_path / "two")
    single.save(tmp_path / "one")
    for name in ("two", "one"):
        with pytest.raises(
            ConfigError, match=r"another model: 1 of them differ, the first is lm_head.weight \(no such"
        ):
            benches.group(2, "qwen3-untied").load(tmp_path / name, 1)
        with pytest.raises(ConfigError, match="another model: 1 of them differ"):
            benches.single("qwen3-untied").load(tmp_path / name, 1)
    assert benches.group(2).step(batch()).trained_tokens > 0  # the ranks still work


# ------------------------------------------------------------------------------------------------------------ deaths


@pytest.mark.slow
def test_a_rank_killed_in_a_collective_is_named_and_all_processes_end(benches):
    group = benches.group(2)
    ranks = benches.ranks(2)
    first, second = (process.pid for process in ranks._processes)
    os.kill(second, signal.SIGSTOP)  # so that the first waits for it in a collective
    threading.Timer(0.5, os.kill, (second, signal.SIGKILL)).start()
    with pytest.raises(
        LearnerDied, match=rf"trainer rank 1 of 2 \(process {second}\) was killed by signal 9 during `st"
    ):
        group.step(batch())
    assert not any(Path(f"/proc/{pid}").exists() for pid in (first, second))
    with pytest.raises(LearnerDied, match="trainer rank 1 of 2"):
        group.step(batch())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exit", r"trainer rank 1 of 2 \(process \d+\) ended with exit code 7 during `step`"),
        ("raise", r"trainer rank [01] of 2 \(process \d+\) failed during `step`: ZeroDivisionError: on purpose$"),
        ("hang", r"trainer rank 0 of 2 \(process \d+\) did not answer within 2 s during `step`"),
    ],
)
@pytest.mark.slow
def test_a_rank_that_ends_fails_or_hangs_is_named(how, message, tmp_path):
    ranks = RankProcesses([Misbehaving(how, rank) for rank in range(2)])
    pids = [process.pid for process in ranks._processes]
    with pytest.raises(LearnerDied, match=message) as raised:
        ranks.call("step", tmp_path, timeout_s=2 if how == "hang" else 60)
    assert ('raise ZeroDivisionError("on purpose")' in raised.value.trace) == (how == "raise")
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]  # both ranks had begun
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_user_errors_are_raised_unchanged_while_the_other_rank_waits():
    with pytest.raises(ConfigError, match="got nothing"):
        RankProcesses([Misbehaving("refuse", rank) for rank in range(2)])


@pytest.mark.slow
def test_the_error_of_a_plug_in_in_a_rank_is_raised_unchanged(tmp_path):
    ranks = RankProcesses([Misbehaving("plug-in", rank) for rank in range(2)])
    with pytest.raises(PluginError, match=r"^mine:loss raised KeyError: 'gone' \(/home/me/mine.py:3\)$"):
        ranks.call("step", tmp_path, timeout_s=60)
    ranks.close()


@pytest.mark.slow
def test_a_single_rank_makes_the_updates_of_one_process_and_writes_its_adapter(paths, tmp_path):
    pytest.importorskip("peft")
    model = HuggingFaceModel(path=paths["qwen3"], lora=Lora(rank=2))
    hardware = replace(CONFIG.hardware, trainer_helpers=0)
    config = replace(CONFIG, model=model, hardware=hardware)
    ranks = RankProcesses.of([{}], learner_spec(config, paths["qwen3"]), [])
    group = LearnerGroup(ranks, [], step_timeout_s=60, transfer_timeout_s=60)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        spec = learner_spec(config, paths["qwen3"])
        single = single_learner(spec, spec.policy.adapted(load_policy(paths["qwen3"])))
        for rows in (7, 8):
            assert group.step(batch(rows)) == single.step(batch(rows))
        for learner, name in ((group, "far"), (single, "near")):
            learner.export(tmp_path / name / "model")
        far, near = (load_file(tmp_path / name / "adapter/adapter_model.safetensors") for name in ("far", "near"))
        assert far.keys() == near.keys() and all(torch.equal(far[name], near[name]) for name in near)
    finally:
        torch.set_num_threads(threads)
        group.close()


# ----------------------------------------------------------------------------------------------------------- adapters


def adapted(config=CONFIG, **lora):
    pytest.importorskip("peft")
    settings = Lora(**({"rank": 4, "alpha": 8.0} | lora))
    return replace(config, model=HuggingFaceModel(path="given to the ranks", lora=settings))


def of_one_process(benches, config, model="qwen3-untied"):
    policy = load_policy(benches.paths[model], dtype=config.hardware.dtype)
    spec = learner_spec(config, benches.paths[model])
    return single_learner(spec, spec.policy.adapted(policy))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "model"), [(2, "qwen3"), (3, "qwen3-untied")])
def test_adapters_on_ranks_have_the_gradient_and_the_updates_of_one_process(benches, ranks, model):
    config = adapted()
    group, single = benches.group(ranks, model, config), of_one_process(benches, config, model)
    assert distance(benches.gradients(group, batch()), benches.gradients(single, batch())) < 1e-5
    for step in range(20):
        ours, theirs = group.step(batch(seed=step)), single.step(batch(seed=step))
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
    found, expected = benches.weights(group), benches.weights(single)
    close(found, expected, atol=2e-6)
    base = load_policy(benches.paths[model])
    moved = {name for name, weight in base.weights() if not torch.allclose(weight, expected[name], atol=1e-4)}
    assert len(moved) == 14  # 2 layers of 7 matrices; embedding, norms and head are frozen


def test_bf16_adapters_on_ranks_start_as_those_of_one_process_and_engines_get_them_in_bf16(benches):
    config = adapted(replace(CONFIG, hardware=replace(CONFIG.hardware, dtype="bfloat16")))
    group, single = benches.group(2, "qwen3", config), of_one_process(benches, config, "qwen3")
    found, expected = benches.weights(group), benches.weights(single)
    assert equal(found, expected) and {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    group.step(batch())
    single.step(batch())
    close(benches.weights(group), benches.weights(single), atol=4e-3)


def test_only_adapters_are_in_what_ranks_send_to_vllm_in_their_checkpoints_and_next_to_their_export(benches, tmp_path):
    config = adapted(replace(CONFIG, recipe=replace(CONFIG.recipe, routing_replay="off")))
    config = replace(config, placement=Placement(engine="vllm"), rollouts=replace(config.rollouts, weights="adapters"))
    group, single = benches.group(2, "qwen3", config), of_one_process(benches, config, "qwen3")
    for learner in (group, single):
        learner.step(batch())
        learner.export(tmp_path / str(learner is group) / "model")
    found, expected = benches.weights(group), benches.weights(single)
    close(found, expected, atol=2e-6)
    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert len(found) == 28 and found[first].shape == (4, 32)
    files = [load_file(tmp_path / str(mine) / "adapter/adapter_model.safetensors") for mine in (True, False)]
    close(*files, atol=2e-6)
    assert equal(files[0], found)
    ours, theirs = (json.loads((tmp_path / str(m) / "adapter/adapter_config.json").read_text()) for m in (True, False))
    assert ours | {"target_modules": sorted(ours["target_modules"])} == theirs | {
        "target_modules": sorted(theirs["target_modules"])  # a set in peft
    }
    close(*(load_file(tmp_path / str(mine) / "model/model.safetensors") for mine in (True, False)), atol=2e-6)


@pytest.mark.slow
def test_any_number_of_ranks_continues_a_checkpoint_of_adapters(benches, tmp_path):
    """One process, two ranks, three, and one process again, each one update further; compared with one process."""
    config, undisturbed = adapted(), of_one_process(benches, adapted())
    for number in (1, 2, 3, 1):
        learner = of_one_process(benches, config) if number == 1 else benches.group(number, "qwen3-untied", config)
        done = undisturbed.updates
        if done:
            learner.load(tmp_path / f"step_{done}", done)
        for one in (learner, undisturbed):
            one.step(batch(seed=done))
        place = tmp_path / f"step_{done + 1}"
        place.mkdir()
        learner.save(place)
    close(benches.weights(learner), benches.weights(undisturbed), atol=2e-6)
    size = sum(file.stat().st_size for file in (tmp_path / "step_4").rglob("*"))
    # A, B and two moments of 2 x 4 x (2 x 64 + 2 x 48 + 3 x 80) entries, in FP32
    assert 12 * 3712 < size < 12 * 3712 + 20_000
