"""Settings of other trainers: those that come nearest to ScaleRL, and what a configuration of one says about it."""

from __future__ import annotations

from scalerl.reading.trainers.check import Row, check, recognized
from scalerl.reading.trainers.data import TRAINERS, Trainer
from scalerl.reading.trainers.read import read_settings
from scalerl.reading.trainers.write import configuration

__all__ = ["TRAINERS", "Row", "Trainer", "check", "configuration", "read_settings", "recognized"]
