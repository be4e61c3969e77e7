"""Metrics and samples for TensorBoard, written without torch."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinf_core.api.tracker import Tracker
from rlinf_core.builtin.trackers.config import TensorBoardConfig
from rlinf_core.errors import ConfigError


class TensorBoard(Tracker):
    """One event file a start; needs the package `tensorboard`."""

    config: TensorBoardConfig

    def start(self, output: Path, run_config: Mapping[str, Any], resumed_step: int) -> None:
        try:
            writer = importlib.import_module("tensorboard.summary.writer.event_file_writer")
            self._event = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2")
            self._text = importlib.import_module("tensorboard.plugins.text.summary_v2")
        except ImportError as err:
            raise ConfigError("the tracker tensorboard needs its package: pip install tensorboard") from err
        self._writer = writer.EventFileWriter(str(output / self.config.folder))
        if resumed_step:
            # Steps of the former process after the resumed one are purged by this mark.
            mark = self._event.SessionLog(status=self._event.SessionLog.START)
            self._add(step=resumed_step + 1, session_log=mark)
        self._add_text("config", resumed_step, "```json\n" + json.dumps(run_config, indent=2) + "\n```")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [
            self._summary.Summary.Value(tag=name, simple_value=float(value))
            for name, value in metrics.items()
        ]
        self._add(step=step, summary=self._summary.Summary(value=values))
        self._writer.flush()

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        for number, sample in enumerate(samples):
            self._add_text(f"samples/{number}", step, "```json\n" + json.dumps(sample, indent=2) + "\n```")

    def log_picture(self, step: int, name: str, file: Path) -> None:
        content = file.read_bytes()
        width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))  # of the PNG header
        picture = self._summary.Summary.Image(
            width=width, height=height, colorspace=3, encoded_image_string=content
        )
        value = self._summary.Summary.Value(tag=name, image=picture)
        self._add(step=step, summary=self._summary.Summary(value=[value]))

    def finish(self, error: BaseException | None) -> None:
        self._writer.close()

    def _add(self, **fields: Any) -> None:  # Any: fields of a protobuf message
        self._writer.add_event(self._event.Event(wall_time=time.time(), **fields))

    def _add_text(self, tag: str, step: int, text: str) -> None:
        summary = self._text.text_pb(tag, text)
        self._add(step=step, summary=summary)
