import time

import pytest
import torch
from tiny_models import tiny_model
from torch.utils.flop_counter import FlopCounterMode

from scalerl.models.cpu import onednn
from scalerl.models.flops import FLOPS_RULE, ModelShape
from scalerl.models.policy import Policy, model_shape
from scalerl.rollouts.engine import Request
from scalerl.rollouts.vllm.lane import Lane
from scalerl.training.learner.base import TrainBatch
from scalerl.training.learner.policy_learner import batch_flops
from scalerl.training.stopwatch import Stopwatch

TWO_LAYERS = ModelShape(matmul_params=1000.0, attention_width=10, windows=(0, 0))


def test_forward_flops_by_hand():
    # 3 tokens from position 0: 2 * 1000 * 3, and two layers of 4 * 10 * (1 + 2 + 3)
    assert TWO_LAYERS.forward_flops(0, 3) == 6000 + 2 * 40 * 6
    # one token at position 7 attends to 8
    assert TWO_LAYERS.forward_flops(7, 1) == 2000 + 2 * 40 * 8


def test_a_window_limits_the_context():
    windowed = ModelShape(matmul_params=0.0, attention_width=1, windows=(3,))
    # contexts 1 2 3 3 3
    assert windowed.forward_flops(0, 5) == 4 * 12
    assert windowed.forward_flops(4, 2) == 4 * 6


def test_a_sequence_costs_the_same_in_one_pass_or_token_by_token():
    for windows in ((0, 0), (4, 0), (4, 4)):
        shape = ModelShape(123.0, 7, windows)
        whole = shape.forward_flops(0, 12)
        assert whole == pytest.approx(sum(shape.forward_flops(p, 1) for p in range(12)))


def test_a_decode_step_costs_the_sum_of_its_sequences_for_any_windows():
    lengths = [3, 9, 5]
    for windows in ((0, 0), (4, 0), (4, 4, 6)):
        shape = ModelShape(1000.0, 10, windows, head_params=100.0)
        alone = sum(shape.forward_flops(n - 1, 1, predicted=1) for n in lengths)
        assert shape.decode_flops(lengths) == pytest.approx(alone)


def test_a_sliding_layer_attends_only_to_its_window():
    # two layers with a window of 4 and one without: 2 x (2 + 4 + 4) + (2 + 4 + 100), times 4 x width
    shape = ModelShape(matmul_params=0.0, attention_width=10, windows=(4, 0, 4))
    assert shape.decode_flops([2, 4, 100]) == 40 * (2 * 10 + 106)


def test_the_head_counts_only_for_predicted_tokens():
    # of 1000 entries 300 are the head's: 12 tokens through the other 700, 5 predictions, contexts 1 + ... + 12 = 78
    shape = ModelShape(matmul_params=1000.0, attention_width=10, windows=(0,), head_params=300.0)
    assert shape.forward_flops(0, 12, predicted=5) == 2 * 700 * 12 + 2 * 300 * 5 + 40 * 78
    # training: three passes through the layers, four with checkpointing; four through the head, computed twice
    assert shape.training_flops(12, predicted=5) == 3 * (2 * 700 * 12 + 40 * 78) + 4 * 2 * 300 * 5
    assert shape.training_flops(12, 5, checkpointing=True) == 4 * (2 * 700 * 12 + 40 * 78 + 2 * 300 * 5)


def test_the_rule_of_earlier_runs_counts_the_head_for_every_token():
    shape = ModelShape(matmul_params=1000.0, attention_width=10, windows=(0,), head_params=300.0)
    assert shape.counted_by(FLOPS_RULE) is shape
    assert shape.counted_by(1).training_flops(12, predicted=5) == 3 * (2 * 1000 * 12 + 40 * 78)
    assert shape.counted_by(1).decode_flops([7, 3]) == 2 * 1000 * 2 + 40 * 10


def test_training_costs_three_forward_passes_or_four_with_checkpointing():
    assert TWO_LAYERS.training_flops(5) == 3 * TWO_LAYERS.forward_flops(0, 5)
    assert TWO_LAYERS.training_flops(5, checkpointing=True) == 4 * TWO_LAYERS.forward_flops(0, 5)


def test_a_batch_counts_the_tokens_of_rows_that_are_trained_and_the_head_for_trained_tokens():
    shape = ModelShape(matmul_params=1000.0, attention_width=10, windows=(0,), head_params=300.0)
    trained = torch.tensor([[0, 0, 1, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]]).bool()
    batch = TrainBatch(
        trained.long(), torch.tensor([4, 3, 5]), torch.zeros(3, 5), torch.ones(3), trained, trained / trained.sum()
    )
    # rows of 4 and 5 tokens: contexts 10 and 15; 2 and 4 trained tokens
    assert batch_flops(shape, batch, False) == 3 * (2 * 700 * 9 + 40 * 25) + 4 * 2 * 300 * 6


def test_a_vllm_sequence_costs_its_prompt_and_every_input_token():
    class Sequence:
        request = Request((0, 0), (5, 9, 2), 1)
        tokens = 0

        def __len__(self):
            return self.tokens

    shape = ModelShape(1000.0, 10, (4,), head_params=300.0)
    lane, sequence = Lane("train", 4, shape), Sequence()
    for before, sequence.tokens in ((0, 2), (2, 5)):
        lane.count(sequence, before)
    # 3 + 5 tokens, of which the last is never fed; 5 predictions; contexts 1 2 3 4 4 4 4
    assert lane.work.flops == 2 * 700 * 7 + 2 * 300 * 5 + 40 * 22


@pytest.mark.parametrize("name", ["llama", "llama-untied", "qwen3", "gemma3-mixed"])
def test_forward_flops_agree_with_torchs_counter(name):
    """torch counts the scores of all pairs, including masked ones, and does not count its CPU kernel, so use eager."""
    model = tiny_model(name, attn_implementation="eager")
    shape = model_shape(model)
    tokens = torch.randint(2, 48, (1, 24))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=tokens, use_cache=False)
    attention = len(shape.windows) * 4 * shape.attention_width * 24 * 24
    assert counter.get_total_flops() == 2 * shape.matmul_params * 24 + attention


def test_training_flops_agree_with_torchs_counter():
    model = tiny_model("llama", attn_implementation="eager")
    shape = model_shape(model)
    tokens = torch.randint(2, 48, (1, 24))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, use_cache=False).logits.sum().backward()
    forward = 2 * shape.matmul_params * 24 + len(shape.windows) * 4 * shape.attention_width * 24 * 24
    assert counter.get_total_flops() == 3 * forward


def test_the_flops_of_a_policys_update_agree_with_torchs_counter(monkeypatch):
    monkeypatch.setattr(onednn, "used", lambda: False)  # torch does not count its products
    policy = Policy(tiny_model("llama", attn_implementation="eager"))
    tokens, trained = torch.randint(2, 48, (1, 24)), torch.zeros(1, 24, dtype=torch.bool)
    trained[0, 17:22] = True
    with FlopCounterMode(display=False) as counter:
        logp_N, _ = policy(tokens, trained)
        logp_N.sum().backward()
    shape = policy.shape
    # torch counts the scores of all 24 x 24 pairs, scalerl only those that the mask allows: 1 + 2 + ... + 24 = 300
    masked = 3 * len(shape.windows) * 4 * shape.attention_width * (24 * 24 - 300)
    assert shape.head_params == 48 * 32
    assert counter.get_total_flops() - masked == shape.training_flops(24, predicted=5)


def test_a_mixture_counts_only_activated_experts():
    dense, mixture = tiny_model("qwen3"), tiny_model("qwen3-moe")
    mlp = 2 * 3 * 32 * 48  # two layers of gate, up and down
    active = 2 * 2 * 3 * 32 * 24 + 2 * 4 * 32  # two layers, two experts of 24, and the router's four scores
    assert model_shape(mixture).matmul_params == model_shape(dense).matmul_params - mlp + active


def test_a_stopwatch_excludes_the_given_seconds():
    watch = Stopwatch(100.0)
    watch.start()
    time.sleep(0.02)
    with watch.paused():
        time.sleep(0.2)
    time.sleep(0.02)
    assert 100.04 <= watch.seconds < 100.15
    assert watch.left_out >= 0.2
