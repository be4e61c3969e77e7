"""Settings of the rewards that ship with the core."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rlinf_core.errors import ConfigError


@dataclass(frozen=True)
class ExactConfig:
    """Settings of `exact`."""

    strip: bool = True  # ignore white space around response and answer
    ignore_case: bool = False  # compare case-insensitively
    collapse_spaces: bool = False  # treat every run of white space as one space


@dataclass(frozen=True)
class RegexConfig:
    """Settings of `regex`."""

    pattern: str  # a Python regular expression
    flags: str = ""  # letters: i = ignore case, m = lines, s = dot matches newlines, x = verbose
    full: bool = False  # the whole response has to match, not a part of it
    group: str = ""  # number or name of the group that has to equal the answer; "" = a match suffices
    value: float = 1.0  # reward of a match

    def __post_init__(self) -> None:
        known = {"i": re.I, "m": re.M, "s": re.S, "x": re.X}
        unknown = set(self.flags) - set(known)
        if unknown:
            raise ConfigError(f"reward.flags of regex has {sorted(unknown)}; known: i, m, s, x")
        try:
            compiled = re.compile(self.pattern, sum(known[letter] for letter in set(self.flags)))
        except re.error as err:
            raise ConfigError(f"reward.pattern of regex is not a regular expression: {err}") from err
        groups = [*compiled.groupindex, *(str(number) for number in range(compiled.groups + 1))]
        if self.group and self.group not in groups:
            raise ConfigError(f"reward.group of regex is {self.group!r}; groups there: {', '.join(groups)}")


@dataclass(frozen=True)
class FormatConfig:
    """Settings of `format`."""

    tags: tuple[str, ...] = ("think", "answer")  # sections the response consists of, in order
    value: float = 1.0  # reward of the right format

    def __post_init__(self) -> None:
        if not self.tags or not all(re.fullmatch(r"\w+", tag) for tag in self.tags):
            raise ConfigError(f"reward.tags of format are names such as think; got {list(self.tags)}")


@dataclass(frozen=True)
class LengthConfig:
    """Settings of `length`."""

    free: int = 2000  # characters without penalty
    limit: int = 4000  # characters from which the penalty is full
    penalty: float = 1.0  # subtracted at the limit; linear in between

    def __post_init__(self) -> None:
        if not 0 <= self.free < self.limit:
            raise ConfigError(f"length needs 0 <= free < limit; got free={self.free}, limit={self.limit}")


@dataclass(frozen=True)
class MathConfig:
    """Settings of `math`."""

    digits: int = 6  # decimals that have to agree


@dataclass(frozen=True)
class ReasoningGymRewardConfig:
    """Settings of `reasoning_gym`."""

    tag: str = "answer"  # score what stands between the last <answer> and </answer>, if there is one


@dataclass(frozen=True)
class CodeConfig:
    """Settings of `code`."""

    timeout_s: float = 5.0  # that a response's program may take for all of its tests
    memory_mb: int = 1024  # that it may take, the interpreter included
    partial: bool = False  # the share of tests that pass, instead of all or nothing

    def __post_init__(self) -> None:
        if not self.timeout_s > 0 or self.memory_mb < 64:
            raise ConfigError(
                f"code needs timeout_s above 0 and memory_mb of 64 or more; got {self.timeout_s} and "
                f"{self.memory_mb}"
            )


@dataclass(frozen=True)
class PythonConfig:
    """Settings of `python`."""

    target: str  # package.module:function or ./file.py:function

    def __post_init__(self) -> None:
        place, colon, function = self.target.rpartition(":")
        if not colon or not place or not function.isidentifier():
            raise ConfigError(
                f"reward.target of python is {self.target!r}; "
                "write package.module:function or ./file.py:function"
            )
        if place.endswith(".py") and not Path(place).is_file():
            raise ConfigError(
                f"reward.target names the file {place}, which does not exist "
                f"(current directory: {Path.cwd()})"
            )
