"""Datasets saved by the `datasets` library, or on a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlinf_core.builtin.datasets.config import HubConfig
from rlinf_core.builtin.datasets.rows import RecordDataset, Source
from rlinf_core.errors import DataError
from rlinf_core.optional import require


class HubDataset(RecordDataset):
    """A directory written by `save_to_disk`, or a hub id; needs the package `datasets`."""

    config: HubConfig

    def load(self) -> Source:
        own = bool(self.config.eval_split)
        split = self.config.eval_split if own and self.split == "eval" else self.config.train_split
        library = require("datasets", "datasets", f"reading {self.config.path}")
        table = _undecoded(self._table(library, split), library)
        records = [(f"row {number}", record) for number, record in enumerate(table, start=1)]
        folder = Path(self.config.path) if Path(self.config.path).is_dir() else Path()
        return Source(f"{self.config.path}, split {split}", records, is_split=own, folder=folder)

    def _table(self, library: Any, split: str) -> Any:  # Any: `datasets` is not a dependency
        path = self.config.path
        if not Path(path).is_dir():
            return self._download(library, split)
        try:
            loaded = library.load_from_disk(path)
        except (OSError, ValueError) as err:
            raise DataError(f"{path} is not a directory written by datasets' save_to_disk: {err}") from err
        if not isinstance(loaded, library.DatasetDict):
            if self.config.eval_split:
                raise DataError(f"{path} holds a single split; leave data.eval_split out to hold rows out")
            return loaded
        if split not in loaded:
            raise DataError(f"{path} has no split {split!r}; there are: {', '.join(loaded)}")
        return loaded[split]

    def _download(self, library: Any, split: str) -> Any:
        path = self.config.path
        if path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise DataError(f"data directory {path} does not exist (current directory: {Path.cwd()})")
        try:
            return library.load_dataset(path, self.config.subset or None, split=split)
        except Exception as err:  # the library raises many kinds; the cause is in the message
            raise DataError(
                f"{path} is no local directory, and loading it from the hub failed: "
                f"{type(err).__name__}: {err}"
            ) from err


def _undecoded(table: Any, library: Any) -> Any:
    """The table with pictures as bytes, which are read when a row is asked for."""
    for name, feature in table.features.items():
        if isinstance(feature, library.Image):
            table = table.cast_column(name, library.Image(decode=False))
        elif isinstance(getattr(feature, "feature", None), library.Image):
            table = table.cast_column(name, type(feature)(library.Image(decode=False)))
    return table
