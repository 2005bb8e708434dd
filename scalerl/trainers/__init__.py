"""Settings of other trainers: those that come nearest to ScaleRL, and what a configuration of one says about it."""

from __future__ import annotations

from scalerl.trainers import nemo_rl, open_instruct, prime_rl, skyrl, slime, trl, verl
from scalerl.trainers.base import Trainer
from scalerl.trainers.check import Row, check, recognized
from scalerl.trainers.read import read_settings
from scalerl.trainers.write import configuration

TRAINERS: dict[str, Trainer] = {
    module.TRAINER.name: module.TRAINER for module in (trl, verl, prime_rl, skyrl, open_instruct, nemo_rl, slime)
}
"""Trainers by the name that `scalerl recipes --for` takes."""

__all__ = ["TRAINERS", "Row", "Trainer", "check", "configuration", "read_settings", "recognized"]
