"""The configuration of a run as frozen values: recipe, data, machine. Does not import torch."""

from scalerl.config.model import HuggingFaceModel, Lora, TinyModel, WarmStart
from scalerl.config.overrides import by_name, merge, parse_config, plain_values, read_config, to_toml
from scalerl.config.placement import Hardware
from scalerl.config.presets import LAB, PRESETS, QUICK
from scalerl.config.run import (
    Checkpointing,
    Evaluation,
    LearnerSettings,
    Rollouts,
    RunConfig,
    Scoring,
)

__all__ = [
    "LAB", "PRESETS", "QUICK", "Checkpointing", "Evaluation", "Hardware", "HuggingFaceModel", "LearnerSettings", "Lora",
    "Rollouts", "RunConfig", "Scoring", "TinyModel", "WarmStart", "by_name", "merge", "parse_config", "plain_values",
    "read_config", "to_toml",
]  # fmt: skip
