import pytest

from scalerl.core.errors import ConfigError
from scalerl.training.config.base import build
from scalerl.training.config.length import Interruption
from scalerl.training.config.recipe import SCALERL, Cispo, PipelineRL, Recipe


def test_scalerl_is_the_papers_recipe():
    assert SCALERL.loss == Cispo(max_ratio=5.0) and SCALERL.aggregation == "prompt" and SCALERL.advantage == "batch"
    assert SCALERL.zero_variance == "drop" and SCALERL.retire_pass_rate == 0.9 and SCALERL.fp32_head
    assert SCALERL.off_policy == PipelineRL(max_lag=8) and isinstance(SCALERL.length, Interruption)
    assert (SCALERL.prompts_per_step, SCALERL.generations_per_prompt, SCALERL.completions_per_step) == (48, 16, 768)
    found = {
        name: getattr(SCALERL.optimizer, name) for name in ("learning_rate", "warmup_steps", "eps", "weight_decay")
    }
    assert found == {"learning_rate": 5e-7, "warmup_steps": 100, "eps": 1e-15, "weight_decay": 0.01}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss": "gsp"}, "loss.kind.*'gspo'"),
        ({"loss": {"kind": "cispo", "max_ratio": -1}}, "loss.max_ratio.*greater"),
        ({"length": {"kind": "interruption", "thinking_tokens": [5, 3]}}, "got .5, 3."),
        ({"length": {"kind": "penalty", "max_tokens": 5, "cache_tokens": 6}}, "at most max_tokens"),
        ({"aggregation": "promt", "top_p": 2}, "aggregation.*'prompt'.*top_p"),  # both mistakes
    ],
)
def test_an_invalid_value_is_an_error_with_its_file_its_place_and_the_nearest_name(values, words):
    with pytest.raises(ConfigError, match=f"my.toml: .*{words}"):
        build(Recipe, values, "my.toml")
