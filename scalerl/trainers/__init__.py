"""Settings of other trainers: those that come nearest to ScaleRL, and what a configuration of one says about it."""

from __future__ import annotations

from scalerl.trainers.check import Row, check, recognized
from scalerl.trainers.data import TRAINERS, Trainer
from scalerl.trainers.read import read_settings
from scalerl.trainers.write import configuration

__all__ = ["TRAINERS", "Row", "Trainer", "check", "configuration", "read_settings", "recognized"]
