"""What only a GPU can show: the engine's replay in bf16 with an FP32 head, and a whole run. Skipped without one."""

import numpy as np
import pytest
import runs
import torch
from tiny_models import tiny_model

from scalerl.models.policy import Policy
from scalerl.rng import stream_key
from scalerl.rollouts.engine import Request, Sampling
from scalerl.rollouts.interrupt import NEVER, LengthRule
from scalerl.rollouts.local.torch_engine import torch_engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]

PROMPTS = [(5, 9, 2), (7, 3, 11, 4, 6, 8, 2), (20,), (21, 22, 23, 24)]


@pytest.mark.parametrize("name", ["qwen3", "llama-untied", "qwen3-moe"])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_log_probabilities_are_those_of_the_model_without_a_cache(name, dtype, allowed):
    policy = Policy(tiny_model(name, initializer_range=0.1).to("cuda", dtype))
    rule = LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=24)
    engine = torch_engine(policy, slots=3, prompt_tokens=8, rule=rule, sampling=Sampling(), refill=1)
    engine.submit([Request((i, 0), prompt, stream_key("gpu", i)) for i, prompt in enumerate(PROMPTS)])
    finished = []
    while engine.occupancy().busy:
        finished += engine.poll()
    for done in finished:
        prompt = PROMPTS[done.id[0]]
        full = torch.tensor([*prompt, *done.rollout.tokens.tolist()], device="cuda")
        with torch.no_grad():
            logps = policy.logits(policy.hidden(full[None])[0]).log_softmax(-1)[len(prompt) - 1 : -1]
        expected = logps.gather(1, full[len(prompt) :, None])[:, 0].float().cpu().numpy()
        np.testing.assert_allclose(done.rollout.logps, expected, atol=allowed)


def test_a_run_on_the_gpu_writes_points_over_device_hours(lab_model, tmp_path):
    text = runs.train(lab_model, tmp_path / "run", "--device", "cuda")
    points = runs.rows(tmp_path / "run", "points.jsonl")
    assert [p["step"] for p in points] == [0, 6, 12, 18, 24] and "device-hours" in text
    first = runs.rows(tmp_path / "run", "metrics.jsonl")[0]
    assert max(abs(first["log_ratio_min"]), abs(first["log_ratio_max"])) < 0.5  # bf16 through two kernels
    assert all(np.isfinite(row["loss"]) for row in runs.rows(tmp_path / "run", "metrics.jsonl"))


def test_the_fp32_head_brings_bf16_log_probabilities_nearer_on_gpu():
    from scalerl.models.head import HeadRule, token_logprobs

    torch.manual_seed(0)
    hidden = torch.randn(256, 64, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(512, 64, device="cuda", dtype=torch.bfloat16)
    tokens = torch.randint(0, 512, (256,), device="cuda")
    exact = (hidden.double() @ weight.double().t()).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    error = {
        fp32: float((token_logprobs(hidden, weight, None, tokens, rule=HeadRule(fp32=fp32))[0] - exact).abs().max())
        for fp32 in (True, False)
    }
    assert error[True] < 1e-3 < error[False]
