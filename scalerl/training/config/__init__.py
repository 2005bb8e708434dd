"""The configuration of a run as frozen values: recipe, data, machine. Does not import torch."""

from scalerl.training.config.model import HuggingFaceModel, Lora, TinyModel, WarmStart
from scalerl.training.config.overrides import by_name, merge, parse_config, plain_values, read_config, to_toml
from scalerl.training.config.placement import Hardware
from scalerl.training.config.presets import LAB, PRESETS, QUICK
from scalerl.training.config.run import (
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
