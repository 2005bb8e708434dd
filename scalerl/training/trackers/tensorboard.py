"""Logs to event files of TensorBoard."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from scalerl.core.serialization import flat
from scalerl.training.trackers.base import LoggedRun


class Tracker:
    """Writes one event file for each process that trains the run; TensorBoard reads them as one run."""

    def start(self, config: Mapping[str, Any], run: LoggedRun) -> str:
        """Open a new event file. The id is the directory, but a resume does not use it: it is a file in the run's."""
        directory = str(run.path.absolute() / "tensorboard")
        if run.part > 1:  # a run of its own in TensorBoard
            directory = os.path.join(directory, f"part-{run.part}")
        self._writer = EventFileWriter(directory)
        self._add(hparams_pb(flat(config)), 0)
        return directory

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one event with all metrics."""
        self._add(Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]), step)

    def figure(self, name: str, png: Path, step: int) -> None:
        """Write the picture unchanged."""
        image = Summary.Image(encoded_image_string=png.read_bytes(), colorspace=4)
        self._add(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def finish(self, state: str) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, summary: Any, step: int) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()
