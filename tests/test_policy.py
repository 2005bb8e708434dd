import pytest
import torch
from tiny_models import tiny_model

from scalerl.core.errors import ConfigError
from scalerl.training.models.policy import Policy, check_head
from scalerl.training.models.weights import WeightLayout


def test_an_unsupported_head_is_refused():
    policy = Policy(tiny_model("granite-scaled"))
    policy.rule = type(policy.rule)(scale=1.0)  # as if the architecture's scale were unknown
    with pytest.raises(ConfigError, match="unsupported"):
        check_head(policy)


def send(source, target, version):
    """Load one policy's weights into another from a flat block, as from shared memory."""
    layout = WeightLayout.of(source.weights())
    views = layout.views(torch.zeros(layout.total, dtype=torch.uint8))
    for name, tensor in source.weights():
        views[name].copy_(tensor)
    target.load_weights(version, views)


def test_a_swap_renews_the_fp32_copy_of_a_bf16_head():
    """With a stale copy the engine would silently use the head of the old weights."""
    source, target = (Policy(tiny_model("qwen3", seed=s).bfloat16()) for s in (1, 2))
    hidden = torch.randn(3, 32).bfloat16()
    with torch.no_grad():
        before = target.logits(hidden)
        send(source, target, version=1)
        assert torch.equal(target.logits(hidden), source.logits(hidden)) and not torch.equal(
            target.logits(hidden), before
        )


def test_capped_attention_scores_are_not_left_to_sdpa_which_has_no_caps():
    model = tiny_model("gemma2-softcap")
    model.config._attn_implementation = "sdpa"  # the default of transformers 5.17
    tokens_BT = torch.arange(1, 21)[None]
    certified = tiny_model("gemma2-softcap")
    certified.set_attn_implementation("eager")
    assert torch.equal(Policy(model).model(tokens_BT).logits, certified(tokens_BT).logits)
    assert model.config._attn_implementation == "eager"
