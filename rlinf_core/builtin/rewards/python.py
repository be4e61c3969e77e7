"""Reward by the user's own function."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.builtin.rewards.config import PythonConfig
from rlinf_core.errors import RewardError, suggest

# Any: what users return is checked below.
RewardFunction = Callable[..., Sequence[Any]]


class PythonReward(Reward):
    """Calls `function(prompts=, responses=, answers=, metas=)`, lists of equal length; one number each back.

    A call holds any number of a step's samples. None is for a response that the function cannot score.
    """

    def __init__(self, config: PythonConfig) -> None:
        super().__init__(config)
        self._function = load_function(config.target)

    def score(self, items: Sequence[RewardItem]) -> list[RewardResult]:
        values = self._function(
            prompts=[item.prompt for item in items],
            responses=[item.response for item in items],
            answers=[item.answer for item in items],
            metas=[dict(item.meta) for item in items],
        )
        try:
            count = len(values)
        except TypeError as err:
            raise RewardError(
                f"{self.config.target} returned {type(values).__name__}, not a list of numbers"
            ) from err
        if count != len(items):
            raise RewardError(
                f"{self.config.target} returned {count} rewards for {len(items)} responses; "
                "return one number per response, in order"
            )
        return [self._checked(value) for value in values]

    def _checked(self, value: Any) -> RewardResult:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            return RewardResult(0.0, "error", f"{self.config.target} returned {value!r}, not a finite number")
        return RewardResult(number)


def load_function(target: str) -> RewardFunction:
    """The function of `package.module:function` or `./file.py:function`; raises `RewardError`."""
    place, _, name = target.rpartition(":")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except Exception as err:  # the user's module may raise anything while it is imported
        raise RewardError(
            f"reward.target {target}: cannot import {place}: {type(err).__name__}: {err}"
        ) from err
    function = getattr(module, name, None)
    if not callable(function):
        offered = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        there = (", ".join(offered[:8]) + (", ..." if len(offered) > 8 else "")) or "none"
        raise RewardError(
            f"reward.target {target}: {place} has no function {name!r}; "
            f"there: {there}.{suggest(name, offered)}"
        )
    loaded: RewardFunction = function
    return loaded


def _load_module(name: str) -> ModuleType:
    """Modules of the current directory are found too, after all installed ones."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module
