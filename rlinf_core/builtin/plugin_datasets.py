"""Registers the datasets that ship with the core."""

from __future__ import annotations

from rlinf_core.builtin.datasets import config
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import DatasetSpec

_ROOM = "rlinf_core.builtin.datasets"


@hookimpl
def rlinf_register_datasets() -> list[DatasetSpec]:
    """Offer files, the hub and computed tasks."""
    return [
        DatasetSpec(
            name="jsonl",
            summary="Rows of a JSON lines file",
            target=f"{_ROOM}.files:Jsonl",
            config=config.JsonlConfig,
        ),
        DatasetSpec(
            name="csv",
            summary="Rows of a CSV file",
            target=f"{_ROOM}.files:Csv",
            config=config.CsvConfig,
        ),
        DatasetSpec(
            name="parquet",
            summary="Rows of a Parquet file",
            target=f"{_ROOM}.files:Parquet",
            config=config.ParquetConfig,
        ),
        DatasetSpec(
            name="hf",
            summary="A dataset of the Hugging Face hub, or saved by its library",
            target=f"{_ROOM}.hub:HubDataset",
            config=config.HubConfig,
        ),
        DatasetSpec(
            name="reasoning_gym",
            summary="Procedural reasoning tasks of reasoning-gym",
            target=f"{_ROOM}.reasoning_gym:ReasoningGym",
            config=config.ReasoningGymConfig,
        ),
        DatasetSpec(
            name="arithmetic",
            summary="Two-operand arithmetic, computed; half of the demonstrations are wrong",
            target=f"{_ROOM}.arithmetic:Arithmetic",
            config=config.ArithmeticConfig,
        ),
        DatasetSpec(
            name="sort_digits",
            summary="Sort a string of digits, computed; half of the demonstrations are wrong",
            target=f"{_ROOM}.sort_digits:SortDigits",
            config=config.SortDigitsConfig,
        ),
        DatasetSpec(
            name="counting_blocks",
            summary="Count blocks of a colour in a picture, drawn; half of the demonstrations are wrong",
            target=f"{_ROOM}.visual:CountingBlocks",
            config=config.CountingBlocksConfig,
        ),
        DatasetSpec(
            name="spatial_relations",
            summary="Where one block lies from another, drawn; half of the demonstrations are wrong",
            target=f"{_ROOM}.visual:SpatialRelations",
            config=config.SpatialRelationsConfig,
        ),
    ]
