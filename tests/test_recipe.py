import pytest
from pydantic import ValidationError

from scalerl.config.base import build
from scalerl.config.recipe import SCALERL, Cispo, Gspo, Interruption, PipelineRL, PpoOffPolicy, Recipe, replace
from scalerl.core.errors import ConfigError


def test_scalerl_is_the_papers_recipe():
    assert SCALERL.loss == Cispo(max_ratio=5.0) and SCALERL.aggregation == "prompt" and SCALERL.advantage == "batch"
    assert SCALERL.zero_variance == "drop" and SCALERL.retire_pass_rate == 0.9 and SCALERL.fp32_head
    assert SCALERL.off_policy == PipelineRL(max_lag=8) and isinstance(SCALERL.length, Interruption)
    assert (SCALERL.prompts_per_step, SCALERL.generations_per_prompt, SCALERL.completions_per_step) == (48, 16, 768)
    optimizer = SCALERL.optimizer
    assert (optimizer.learning_rate, optimizer.warmup_steps, optimizer.eps, optimizer.weight_decay) == (
        5e-7,
        100,
        1e-15,
        0.01,
    )


def test_an_ablation_is_a_replacement_and_recipes_are_immutable():
    ablated = replace(SCALERL, loss=Gspo())
    assert ablated.loss == Gspo(clip_low=3e-3, clip_high=4e-3) and SCALERL.loss == Cispo()
    with pytest.raises(ValidationError):
        SCALERL.loss = Gspo()
    with pytest.raises(ConfigError, match="prompts_per_step: got 0"):
        replace(SCALERL, prompts_per_step=0)


def test_the_bound_on_staleness_follows_from_the_mode():
    assert PipelineRL(max_lag=8).max_lag == 8 and PipelineRL(max_lag=0).max_lag == 0
    assert PpoOffPolicy(batches=8).max_lag == 7 and PpoOffPolicy(batches=1).max_lag == 0
    assert PipelineRL().stale == "wait"  # the rule that loses no group and no token


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lossx": 1}, r"unknown key 'lossx' \(did you mean 'loss'\?\); allowed here: name, prompts_per_step"),
        (
            {"loss": {"kind": "gsp"}},
            r"loss.kind: got 'gsp' \(did you mean 'gspo'\?\); allowed: cispo, dapo, grpo, gspo",
        ),
        ({"loss": "gsp"}, r"loss.kind: got 'gsp' \(did you mean 'gspo'\?\)"),
        ({"loss": {"kind": "gspo", "clip_lo": 1}}, r"unknown key 'loss.clip_lo' \(did you mean 'clip_low'\?\)"),
        ({"loss": {"kind": "cispo", "max_ratio": -1}}, "loss.max_ratio: got -1; input should be greater than 0"),
        (
            {"loss": {"kind": "cispo", "max_ratio": float("inf")}},
            "loss.max_ratio: got inf; input should be a finite number",
        ),
        (
            {"aggregation": "promt"},
            r"aggregation: got 'promt' \(did you mean 'prompt'\?\); allowed: prompt, sample, token",
        ),
        ({"length": {"kind": "interruption", "thinking_tokens": [5, 3]}}, r"got \(5, 3\); the low end must not exceed"),
        ({"length": {"kind": "interruption", "phrase": "stop"}}, "must end with the end_tag '</think>'"),
        ({"length": {"kind": "penalty", "max_tokens": 5, "cache_tokens": 6}}, r"allowed: at most max_tokens \(5\)"),
        ({"generations_per_prompt": 1}, "generations_per_prompt: got 1; input should be greater than or equal to 2"),
        ({"prompts_per_step": "many"}, "prompts_per_step: got 'many'; input should be a valid integer"),
        (
            {"off_policy": {"kind": "pipeline", "stale": "masks"}},
            r"off_policy.stale: got 'masks' \(did you mean 'mask'\?\); allowed: wait, mask, drop",
        ),
        ({"fp32_head": "maybe"}, "fp32_head: got 'maybe'; input should be a valid boolean"),
    ],
)
def test_an_invalid_value_is_an_error_with_the_allowed_values_and_the_nearest_name(values, message):
    with pytest.raises(ConfigError, match=message) as error:
        build(Recipe, values, "my.toml")
    assert str(error.value).startswith("my.toml: ")


def test_several_mistakes_are_reported_together():
    with pytest.raises(ConfigError, match=r"aggregation: .*; top_p: "):
        build(Recipe, {"aggregation": "x", "top_p": 2}, "my.toml")
