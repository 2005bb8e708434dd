"""Code for speed on CPUs is imported only on CPUs."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_model_on_another_device_does_not_import_models_cpu():
    code = """
import sys, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from scalerl.training.models.policy import Policy
from scalerl.training.engines.engine import Sampling
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.local.torch_engine import torch_engine
import scalerl.training.loop.launch
config = Qwen3Config(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=2, head_dim=8)
with torch.device("meta"):
    model = Qwen3ForCausalLM(config)
policy = Policy(model)
hidden = torch.zeros(5, 16, device="meta")
assert policy.rule.logits(hidden, policy.head_weight, None).shape == (5, 32)
torch_engine(policy, slots=2, prompt_tokens=4, rule=LengthRule(None, NEVER, 8), sampling=Sampling())
loaded = [name for name in sys.modules if name.startswith("scalerl.training.models.cpu.")]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)
