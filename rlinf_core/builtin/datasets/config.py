"""Settings of the datasets that ship with the core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class _KeysConfig:
    path: str = field(metadata={"path": True})  # what to read
    holdout: int = 0  # last rows kept for evaluation; 0 = 10 %, at most 512
    prompt_key: str = "prompt"  # holds text or a list of chat messages
    answer_key: str = "answer"  # handed to the rewards; "" = rows have no answer
    demonstration_key: str = ""  # a response to imitate; "" = none
    prompt_template: str = ""  # the prompt made of the row's keys, as in "Q: {question} A:"
    image_key: str = ""  # a picture's path or bytes, or a list of them; "" = rows have no pictures
    image_folder: str = field(default="", metadata={"path": True})  # of relative paths; "" = beside the data

    def __post_init__(self) -> None:
        if self.holdout < 0:
            raise ConfigError(f"data.holdout is a number of rows >= 0; got {self.holdout}")


@dataclass(frozen=True)
class _FileConfig(_KeysConfig):
    eval_path: str = field(default="", metadata={"path": True})  # evaluation rows; "" = hold out some


@dataclass(frozen=True)
class JsonlConfig(_FileConfig):
    """Settings of `jsonl`."""


@dataclass(frozen=True)
class CsvConfig(_FileConfig):
    """Settings of `csv`."""

    delimiter: str = ","  # between columns

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter) != 1:
            raise ConfigError(f"data.delimiter of csv is one character; got {self.delimiter!r}")


@dataclass(frozen=True)
class ParquetConfig(_FileConfig):
    """Settings of `parquet`."""


@dataclass(frozen=True)
class HubConfig(_KeysConfig):
    """Settings of `hf`; `path` is a directory saved by `datasets`, or a hub id."""

    path: str = field()  # a directory saved by `datasets`, or a hub id such as openai/gsm8k
    subset: str = ""  # the hub dataset's configuration, such as main
    train_split: str = "train"  # split to train on
    eval_split: str = ""  # split to evaluate on; "" = hold out rows of the training split


@dataclass(frozen=True)
class SortDigitsConfig:
    """Settings of `sort_digits`."""

    digits: int = 6  # length of the string to sort
    size: int = 100_000  # training rows
    eval_size: int = 512  # evaluation rows
    noise: float = 0.5  # share of the demonstrations that are wrong on purpose

    def __post_init__(self) -> None:
        _check("sort_digits", "digits", self.digits, 2, 64)
        _check("sort_digits", "noise", self.noise, 0, 1)
        _check_sizes("sort_digits", self.size, self.eval_size)


@dataclass(frozen=True)
class ArithmeticConfig:
    """Settings of `arithmetic`."""

    digits: int = 2  # operands run from 0 to 10**digits - 1
    operator: Literal["+", "-", "*"] = "+"  # between the operands
    zero_pad: bool = True  # write every number with the same width: 07+35=042
    size: int = 100_000  # training rows
    eval_size: int = 512  # evaluation rows
    noise: float = 0.5  # share of the demonstrations that are wrong on purpose
    tool: str = ""  # that demonstrations let compute, such as calculator; "" = none

    def __post_init__(self) -> None:
        if self.tool and self.zero_pad:
            raise ConfigError(
                f"data.zero_pad: data.tool={self.tool} writes numbers without zeros before them; set it to "
                "false"
            )
        _check("arithmetic", "digits", self.digits, 1, 12)
        _check("arithmetic", "noise", self.noise, 0, 1)
        _check_sizes("arithmetic", self.size, self.eval_size)


@dataclass(frozen=True)
class CountingBlocksConfig:
    """Settings of `counting_blocks`."""

    pixels: int = 32  # width and height of the picture
    grid: int = 4  # cells across; a block lies in a cell of its own
    most: int = 6  # blocks of the colour asked for; at least one
    distractors: int = 6  # blocks of other colours at most
    size: int = 100_000  # training rows
    eval_size: int = 512  # evaluation rows
    noise: float = 0.5  # share of the demonstrations that are wrong on purpose

    def __post_init__(self) -> None:
        _check("counting_blocks", "grid", self.grid, 2, 16)
        _check("counting_blocks", "pixels", self.pixels, 4 * self.grid, 4096)
        _check("counting_blocks", "most", self.most, 2, self.grid**2)
        _check("counting_blocks", "distractors", self.distractors, 0, self.grid**2 - self.most)
        _check("counting_blocks", "noise", self.noise, 0, 1)
        _check_sizes("counting_blocks", self.size, self.eval_size)


@dataclass(frozen=True)
class SpatialRelationsConfig:
    """Settings of `spatial_relations`."""

    pixels: int = 32  # width and height of the picture
    grid: int = 4  # cells across; a block lies in a cell of its own
    distractors: int = 2  # blocks that the question is not about
    size: int = 100_000  # training rows
    eval_size: int = 512  # evaluation rows
    noise: float = 0.5  # share of the demonstrations that are wrong on purpose

    def __post_init__(self) -> None:
        _check("spatial_relations", "grid", self.grid, 2, 16)
        _check("spatial_relations", "pixels", self.pixels, 4 * self.grid, 4096)
        _check("spatial_relations", "distractors", self.distractors, 0, self.grid**2 - 2)
        _check("spatial_relations", "noise", self.noise, 0, 1)
        _check_sizes("spatial_relations", self.size, self.eval_size)


@dataclass(frozen=True)
class ReasoningGymConfig:
    """Settings of `reasoning_gym`."""

    task: str = "chain_sum"  # a dataset of reasoning-gym
    options: dict[str, Any] = field(default_factory=dict)  # the task's own settings, as in {max_digits: 2}
    size: int = 10_000  # training rows
    eval_size: int = 256  # evaluation rows, whose questions training never asks

    def __post_init__(self) -> None:
        _check_sizes("reasoning_gym", self.size, self.eval_size)


def _check(plugin: str, key: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"data.{key} of {plugin} must be between {low} and {high}; got {value}")


def _check_sizes(plugin: str, size: int, eval_size: int) -> None:
    for key, value in (("size", size), ("eval_size", eval_size)):
        if value < 1:
            raise ConfigError(f"data.{key} of {plugin} must be at least 1; got {value}")
