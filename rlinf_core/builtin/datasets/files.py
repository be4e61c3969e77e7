"""Datasets read from JSON lines, CSV and Parquet files."""

from __future__ import annotations

import csv
import io
import json
from abc import abstractmethod
from pathlib import Path

from rlinf_core.builtin.datasets.config import CsvConfig
from rlinf_core.builtin.datasets.rows import Record, RecordDataset, Source
from rlinf_core.errors import DataError
from rlinf_core.optional import require


class FileDataset(RecordDataset):
    """Rows of one file, or of one file a split."""

    def load(self) -> Source:
        own = bool(self.config.eval_path)
        path = Path(self.config.eval_path if own and self.split == "eval" else self.config.path)
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise DataError(f"data file {path} {what} (current directory: {Path.cwd()})")
        return Source(str(path), self.read(path), is_split=own, folder=path.parent)

    @abstractmethod
    def read(self, path: Path) -> list[tuple[str, Record]]:
        """Every record with where it stands; raises `DataError` for an unreadable one."""


class Jsonl(FileDataset):
    """One JSON object a line; blank lines are skipped. A file that is one JSON list is read too."""

    def read(self, path: Path) -> list[tuple[str, Record]]:
        text = _text(path)
        if text.lstrip().startswith("["):
            return self._read_list(path, text)
        records = []
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as err:
                raise DataError(f"{path}, line {number}: not JSON: {err.msg} at column {err.colno}") from err
            records.append(_object(record, path, f"line {number}"))
        return records

    def _read_list(self, path: Path, text: str) -> list[tuple[str, Record]]:
        try:
            values = json.loads(text)
        except json.JSONDecodeError as err:
            raise DataError(f"{path}, line {err.lineno}: not JSON: {err.msg} at column {err.colno}") from err
        return [_object(value, path, f"entry {number}") for number, value in enumerate(values, start=1)]


class Csv(FileDataset):
    """The first line names the columns."""

    config: CsvConfig

    def read(self, path: Path) -> list[tuple[str, Record]]:
        reader = csv.DictReader(
            io.StringIO(_text(path), newline=""), delimiter=self.config.delimiter, strict=True
        )
        records: list[tuple[str, Record]] = []
        try:
            for record in reader:
                where = f"line {reader.line_num}"
                if None in record or None in record.values():
                    columns = len(reader.fieldnames or ())
                    raise DataError(
                        f"{path}, {where}: the number of cells differs from the {columns} columns"
                    )
                records.append((where, record))
        except csv.Error as err:
            raise DataError(f"{path}, line {reader.line_num}: {err}") from err
        return records


class Parquet(FileDataset):
    """A Parquet file, read whole; needs `pyarrow`."""

    def read(self, path: Path) -> list[tuple[str, Record]]:
        parquet = require("pyarrow.parquet", "pyarrow", f"reading {path}")
        try:
            records = parquet.read_table(path).to_pylist()
        except (OSError, ValueError) as err:  # pyarrow's own errors derive from these
            raise DataError(f"{path} is not a readable Parquet file: {err}") from err
        return [(f"row {number}", record) for number, record in enumerate(records, start=1)]


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise DataError(f"{path} is not UTF-8 text (byte {err.start})") from err
    except OSError as err:
        raise DataError(f"cannot read {path}: {err.strerror}") from err


def _object(value: object, path: Path, where: str) -> tuple[str, Record]:
    if not isinstance(value, dict):
        raise DataError(f"{path}, {where}: expected a JSON object, found {type(value).__name__}")
    return where, value
