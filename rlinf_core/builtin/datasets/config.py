"""Settings of the datasets that ship with the core."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class SortDigitsConfig:
    """Settings of `sort_digits`."""

    digits: int = 6  # length of the string to sort
    size: int = 100_000  # training rows
    eval_size: int = 512  # evaluation rows
    noise: float = 0.5  # share of the demonstrations that are wrong on purpose

    def __post_init__(self) -> None:
        check_range("sort_digits", "digits", self.digits, 2, 64)
        check_range("sort_digits", "noise", self.noise, 0, 1)
        check_sizes("sort_digits", self.size, self.eval_size)


@dataclass(frozen=True)
class _FileConfig:
    path: str = field(default="", metadata={"path": True})  # the file; required
    eval_path: str = field(default="", metadata={"path": True})  # evaluation rows; "" = hold out some
    holdout: int = 0  # last rows used for evaluation; 0 = 10 %, at most 512
    prompt_key: str = "prompt"  # holds text or a list of chat messages
    answer_key: str = "answer"  # handed to the rewards; "" = rows have no answer
    demonstration_key: str = ""  # a response to imitate; "" = none
    prompt_template: str = ""  # the prompt made of the row's keys, as in "Q: {question} A:"

    def __post_init__(self) -> None:
        if self.holdout < 0:
            raise ConfigError(f"data.holdout is a number of rows >= 0; got {self.holdout}")


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


def check_range(plugin: str, key: str, value: float, low: float, high: float) -> None:
    """Raise `ConfigError` unless low <= value <= high."""
    if not low <= value <= high:
        raise ConfigError(f"data.{key} of {plugin} must be between {low} and {high}; got {value}")


def check_sizes(plugin: str, size: int, eval_size: int) -> None:
    """Raise `ConfigError` for a split without rows."""
    for key, value in (("size", size), ("eval_size", eval_size)):
        if value < 1:
            raise ConfigError(f"data.{key} of {plugin} must be at least 1; got {value}")
