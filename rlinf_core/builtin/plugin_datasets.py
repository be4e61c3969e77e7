"""Registers the datasets that ship with the core."""

from __future__ import annotations

from rlinf_core.builtin.datasets.config import (
    CsvConfig,
    JsonlConfig,
    ParquetConfig,
    SortDigitsConfig,
)
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import DatasetSpec

_ROOM = "rlinf_core.builtin.datasets"


@hookimpl
def rlinf_register_datasets() -> list[DatasetSpec]:
    """Offer files and computed tasks."""
    return [
        DatasetSpec(
            name="jsonl",
            summary="Rows of a JSON lines file",
            target=f"{_ROOM}.files:Jsonl",
            config=JsonlConfig,
        ),
        DatasetSpec(
            name="csv",
            summary="Rows of a CSV file",
            target=f"{_ROOM}.files:Csv",
            config=CsvConfig,
        ),
        DatasetSpec(
            name="parquet",
            summary="Rows of a Parquet file",
            target=f"{_ROOM}.files:Parquet",
            config=ParquetConfig,
        ),
        DatasetSpec(
            name="sort_digits",
            summary="Sort a string of digits, computed; half of the demonstrations are wrong",
            target=f"{_ROOM}.sort_digits:SortDigits",
            config=SortDigitsConfig,
        ),
    ]
