"""One cache for training and evaluation, in memory that grows with its sequences; like prompts share a pass."""

import numpy as np
import pytest
import torch
from sampled import run_out
from test_packing import LargestTensor
from tiny_models import tiny_model

from scalerl.core.machine import resident_bytes
from scalerl.core.rng import stream_key
from scalerl.training.engines.engine import Request, Sampling, step
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.local import torch_engine as module
from scalerl.training.engines.local.torch_engine import torch_engine
from scalerl.training.models.policy import Policy

RULE = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=12)


def make(slots=4, policy=None, rule=RULE, prompt_tokens=8, **options):
    policy = policy or Policy(tiny_model("qwen3"))
    sampling = Sampling(stop=(1,), top_p=options.pop("top_p", 1.0))
    return torch_engine(
        policy, slots=slots, prompt_tokens=prompt_tokens, rule=rule, sampling=sampling, refill=1, **options
    )


def requests(name, count, longest=8):
    """Requests whose prompts have 1 to `longest` tokens."""
    return [Request((i, 0), tuple(range(5, 6 + i % longest)), stream_key(name, i)) for i in range(count)]


def results(finished):
    return {one.id: (one.rollout.tokens.tolist(), one.rollout.logps.tolist()) for one in finished}


def test_an_evaluation_in_the_trainings_cache_changes_neither_of_both():
    alone, other = make(slots=5), make(slots=6)
    for engine, name in ((alone, "train"), (other, "evaluate")):
        engine.submit(requests(name, 9))
    expected = results(run_out(alone)), results(run_out(other))

    training = make(slots=5)
    evaluator = make(slots=6, policy=training.decoder.policy, lender=training, spare_rows=6)
    assert evaluator.decoder.cache is training.decoder.cache and training.decoder.cache.slots == 6
    training.submit(requests("train", 9))
    finished = [one for _ in range(3) for one in step(training)]
    assert training.occupancy().running == 5
    evaluator.submit(requests("evaluate", 9))
    evaluated = run_out(evaluator)
    finished += run_out(training)
    assert (results(finished), results(evaluated)) == expected


def test_a_snapshot_of_lent_sequences_has_their_cache():
    training = make()
    evaluator = make(policy=training.decoder.policy, lender=training, spare_rows=1)
    training.submit(requests("train", 4))
    step(training)
    before = training.state()["cache"]
    evaluator.submit(requests("evaluate", 1))
    step(evaluator)
    assert not training.decoder.cache.layers[0].keys[0, :, 0].equal(before["tensors"]["keys.0"][0])
    evaluator.cancel([(0, 0)])
    after = training.state()["cache"]
    assert all(torch.equal(after["tensors"][name], tensor) for name, tensor in before["tensors"].items())


def test_an_evaluation_gets_the_rows_that_the_sequences_of_training_leave():
    training = make(slots=10)
    evaluator = make(slots=10, policy=training.decoder.policy, lender=training, spare_rows=2)
    training.submit(requests("train", 10))
    step(training)
    evaluator.submit(requests("evaluate", 40))
    step(evaluator)
    # 10 + 2 rows of 8 + 12 tokens; prompts of 1 to 8, 1 and 2 tokens are cached: 39 of 240, which leaves 10.05 rows
    assert evaluator.occupancy().running == 10
    run_out(evaluator)
    for _ in range(4):
        step(training)
    cached = int(training._cached_tokens().sum())
    evaluator.submit(requests("evaluate", 40))
    step(evaluator)
    assert evaluator.occupancy().running == min(10, (240 - cached) // 20) < 10
    assert len(run_out(evaluator)) == 40


def test_the_cache_grows_with_the_longest_sequences_not_with_the_limit():
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=40_000)
    cache = 64 * 40_008 * Policy(tiny_model("qwen3")).cache_bytes
    run_out(make(slots=1))  # loads libraries
    before = resident_bytes()
    engine = make(slots=64, rule=rule)
    engine.submit(requests("grow", 64))
    for _ in range(10):
        step(engine)
    assert cache > 600e6 and resident_bytes() - before < 0.25 * cache


def test_a_restored_engine_goes_on_as_the_one_that_was_saved():
    """Also one that sampled something else before, whose slots hold tokens of finished sequences."""
    saved, restored = make(slots=4), make(slots=4)
    for engine, count in ((saved, 9), (restored, 7)):
        engine.submit(requests("restored", count))
        for _ in range(5):
            step(engine)
    restored.load_state(saved.state())
    assert results(run_out(restored)) == results(run_out(saved))


@pytest.mark.parametrize("name", ["qwen3", "mistral-sliding"])
def test_memory_of_a_prefill_grows_with_its_tokens_not_with_their_square(name):
    """A mask of 8,192 x 8,192 has 67 million entries; the largest tensor of the layers has 8,192 x 48."""
    policy = Policy(tiny_model(name, max_position_embeddings=16_384, sliding_window=None))
    decoder = module.TorchDecoder(policy, 1, 8200, Sampling())
    with LargestTensor() as seen:
        decoder.prefill(np.array([0]), [tuple(i % 48 for i in range(8192))])
    assert seen.entries <= 8200 * 2 * 48


@pytest.mark.parametrize("name", ["qwen3", "mistral-sliding", "gemma3-two-ropes", "gpt-oss", "gemma2-softcap", "llama"])
@pytest.mark.parametrize("length", [65, 200])
def test_long_prompts_of_unlike_lengths_get_the_hidden_states_of_a_forward_without_cache(name, length):
    policy = Policy(tiny_model(name, max_position_embeddings=512))
    prompts = [tuple((7 * i + j) % 48 for j in range(length - 20 * i)) for i in range(3)]
    decoder = module.TorchDecoder(policy, 3, 256, Sampling())
    with torch.no_grad():
        decoder.prefill(np.arange(3), prompts)
        expected = [policy.hidden(torch.tensor([prompt]))[0, -1] for prompt in prompts]
    torch.testing.assert_close(decoder._hidden_SD, torch.stack(expected), atol=2e-5, rtol=2e-5)
