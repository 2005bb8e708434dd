"""Supervised warm start: its loss is cross-entropy, RL can use its output, and nothing is overwritten."""

import json
import os
import signal

import pytest
import torch
from json_rows import write_rows
from torch.nn import functional

from scalerl import cli
from scalerl.config import TinyModel
from scalerl.config.recipe import AdamW, Reinforce
from scalerl.config.supervised import Supervised
from scalerl.core.errors import ConfigError
from scalerl.models.loading import load_tokenizer
from scalerl.models.policy import Policy, load_policy
from scalerl.prompts.demonstrations import Demonstration
from scalerl.training import supervised as module
from scalerl.training.learner.base import BadGradient
from scalerl.training.learner.single import SingleLearner
from scalerl.training.supervised import batches, collate, fine_tune, held_out_loss
from scalerl.training.warm_start import make_model, make_tokenizer


def demonstration(*tokens, prompt=1):
    return Demonstration(tokens, prompt, "", "")


def made_policy():
    torch.manual_seed(0)
    return Policy(make_model(TinyModel(width=16), make_tokenizer()))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    made_policy().model.save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def rows(tmp_path):
    """The sum of two digits modulo 10: twenty prompts."""
    pairs = [(i, j) for i in range(10) for j in (1, 2)]
    rows = [{"prompt": f"{i}+{j}=", "completion": f"{(i + j) % 10}"} for i, j in pairs]
    return write_rows(tmp_path / "rows.jsonl", rows)


def train(model, rows, out, stop=lambda: False, **settings):
    usual = {"steps": 3, "batch_tokens": 60, "learning_rate": 3e-3, "warmup_steps": 1}
    return fine_tune(
        Supervised(model=str(model), data=str(rows), **{**usual, **settings}), out, lambda line: None, stop
    )


def test_a_batch_trains_completion_tokens_with_weights_that_sum_to_one():
    batch = collate([demonstration(5, 6, 7, 8, prompt=2), demonstration(9, 4, prompt=1)])
    assert batch.tokens_BT.tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]] and batch.length_B.tolist() == [4, 2]
    assert batch.trained_BT.tolist() == [[False, False, True, True], [False, True, False, False]]
    third = pytest.approx(1 / 3)
    assert batch.weights_BT.tolist() == [[0, 0, third, third], [0, third, 0, 0]]


def test_loss_and_gradient_equal_those_of_cross_entropy():
    rows = [demonstration(5, 6, 7, 8, 9, prompt=2), demonstration(9, 4, 3, prompt=1), demonstration(2, 2, prompt=1)]
    policy, reference = made_policy(), made_policy().model
    learner = SingleLearner(policy, AdamW(), Reinforce(), micro_batch_tokens=5)  # one row a micro-batch
    computed = learner._add_gradients(collate(rows)).loss

    labels_BT = torch.tensor([[-100, -100, 7, 8, 9], [-100, 4, 3, -100, -100], [-100, 2, -100, -100, -100]])
    logits_BTV = reference(collate(rows).tokens_BT).logits[:, :-1]
    loss = functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=-100)
    loss.backward()
    assert computed == pytest.approx(float(loss.detach()), rel=1e-5)
    for ours, theirs in zip(policy.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert held_out_loss(policy, rows, micro_batch_tokens=5) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert held_out_loss(policy, [], 5) is None


def test_adapters_are_trained_and_merged_into_the_written_model(model, rows, tmp_path):
    pytest.importorskip("peft")
    settings = {"lora_rank": 4, "lora_targets": "q_proj, down_proj"}
    outcome = train(model, rows, tmp_path / "out", steps=20, learning_rate=2e-2, held_out=0.2, **settings)
    assert outcome.held_out_after < outcome.held_out_before - 0.1
    before, after = (dict(load_policy(str(path)).weights()) for path in (model, tmp_path / "out"))
    moved = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys() and moved == {"q_proj", "down_proj"}
    assert {path.name for path in (tmp_path / "out/adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_an_epoch_contains_every_row_once_and_batches_keep_their_size():
    rows = [demonstration(*[i] * length) for i, length in enumerate((4, 4, 3, 5, 9, 2))]

    def made(**changes):
        return list(batches(rows, Supervised(model="m", data="d", batch_tokens=8, **changes)))

    once = made(epochs=1)
    assert sorted(row.tokens for batch in once for row in batch) == sorted(row.tokens for row in rows)
    sizes = [[len(row.tokens) for row in batch] for batch in once]
    assert all(sum(size) <= 8 or size == [9] for size in sizes) and [9] in sizes
    twice, halves = made(epochs=2), made(epochs=1.5)
    assert twice[: len(once)] == once and twice[len(once) :] != once  # another order
    assert halves == twice[: len(halves)] and len(once) < len(halves) < len(twice)
    assert made(steps=len(twice)) == twice and len(made(steps=50)) == 50
    assert made(epochs=1, seed=1) != once and made(epochs=1) == once
    assert len(made()) > len(twice)  # three epochs by default


def test_the_written_model_has_learned_its_rows(model, rows, tmp_path):
    out = tmp_path / "made"
    outcome = train(model, rows, out, steps=60, learning_rate=1e-2, batch_tokens=120, held_out=0.1)
    record = json.loads((out / "sft.json").read_text())
    losses = [step["loss"] for step in record["steps"]]
    assert len(losses) == 60 and losses[0] > 3 and losses[-1] < 0.7  # log 32 = 3.47 before
    assert record["held_out_rows"] == 2 and record["training_rows"] == 18 and record["stopped"] is False
    assert record["held_out_loss"] == outcome.held_out_after < record["held_out_loss_before"]
    assert record["settings"]["learning_rate"] == 1e-2 and record["steps"][0]["learning_rate"] == 1e-2
    policy, tokenizer = load_policy(str(out)), load_tokenizer(str(out))
    (line, *_) = rows.read_text().splitlines()
    prompt = tokenizer(json.loads(line)["prompt"], return_tensors="pt")["input_ids"]
    after = policy.logits(policy.hidden(torch.cat([prompt, prompt[:, :1]], dim=1))[0, -1:]).argmax()
    assert int(after) == tokenizer.eos_token_id  # an answer of one digit, then the end
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made", "rows.jsonl"]  # no temporary directory is left


def test_equal_settings_give_equal_weights(model, rows, tmp_path):
    first, again = (tmp_path / name for name in ("first", "again"))
    train(model, rows, first)
    train(model, rows, again, micro_batch_tokens=1000)
    assert (first / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()


def test_a_nonfinite_loss_is_reported_and_nothing_is_written(model, rows, tmp_path, monkeypatch):
    def fail(learner, batch):
        raise BadGradient("the loss is nan")

    monkeypatch.setattr(SingleLearner, "step", fail)
    with pytest.raises(ConfigError, match="learning-rate"):
        train(model, rows, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_limit_beyond_the_models_positions_is_refused(model, rows, tmp_path):
    with pytest.raises(ConfigError, match="at most 512"):
        train(model, rows, tmp_path / "made", max_tokens=513)


def test_an_interrupt_ends_after_the_step_and_writes_the_weights(model, rows, tmp_path, monkeypatch, handlers):
    step = module._step

    def interrupted(*given):
        row = step(*given)
        if row["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return row

    monkeypatch.setattr(module, "_step", interrupted)
    words = ["sft", str(model), "--data", str(rows), "--out", str(tmp_path / "made"), "--steps", "9"]
    assert cli.main(words) == 130
    record = json.loads((tmp_path / "made" / "sft.json").read_text())
    assert record["stopped"] is True and len(record["steps"]) == 2 and record["held_out_loss"] > 0
