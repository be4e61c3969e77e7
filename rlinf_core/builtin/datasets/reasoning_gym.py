"""The procedural tasks of reasoning-gym."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

from rlinf_core.api.dataset import Dataset, Split
from rlinf_core.builtin.datasets.config import ReasoningGymConfig
from rlinf_core.builtin.datasets.rows import digest
from rlinf_core.errors import DataError, suggest
from rlinf_core.optional import require
from rlinf_core.types import Row

OTHERS = 32


class ReasoningGym(Dataset):
    """Questions of one task; no training row asks a question that is held out for evaluation.

    `meta` carries what the reward `reasoning_gym` needs to score an answer.
    """

    config: ReasoningGymConfig

    def __init__(self, config: ReasoningGymConfig, split: Split, seed: int) -> None:
        super().__init__(config, split, seed)
        self._size = config.size if split == "train" else config.eval_size
        self._task = make_task(config.task, config.options, self._size, _task_seed(split, seed))
        self._others = [  # stand in for rows whose question is held out
            make_task(config.task, config.options, self._size, _task_seed(f"{split}/{other}", seed))
            for other in range(OTHERS if split == "train" else 0)
        ]

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < self._size:
            raise IndexError(f"row {index} of {self._size}")
        entry = self._entry(index)
        meta = {"task": self.config.task, "options": self.config.options, "entry": entry}
        return Row(prompt=entry["question"], answer=entry["answer"], meta=meta)

    def _entry(self, index: int) -> Any:  # Any: the library's record
        for task in (self._task, *self._others):
            entry = task[index]
            if self.split == "eval" or entry["question"] not in self._held_out:
                return entry
        raise DataError(
            f"the task {self.config.task!r} with options {self.config.options} has too few different "
            f"questions: {OTHERS + 1} draws for row {index} are all held out; lower data.eval_size, or widen "
            "data.options"
        )

    @cached_property
    def _held_out(self) -> frozenset[str]:
        config = self.config
        task = make_task(config.task, config.options, config.eval_size, _task_seed("eval", self.seed))
        return frozenset(task[index]["question"] for index in range(config.eval_size))

    def fingerprint(self) -> str:
        first = [self[index] for index in range(min(3, self._size))]
        return digest([Row(prompt=repr((self.config, self.split, self.seed))), *first])


def make_task(task: str, options: dict[str, Any], size: int, seed: int) -> Any:  # Any: the library's type
    """The library's dataset; raises `DataError` for an unknown task or setting."""
    factory = require("reasoning_gym.factory", "reasoning-gym", f"the task {task!r}")
    if task not in factory.DATASETS:
        raise DataError(
            f"reasoning-gym has no task {task!r}; there are {len(factory.DATASETS)}, among them "
            f"{', '.join(sorted(factory.DATASETS)[:5])}.{suggest(task, factory.DATASETS)}"
        )
    try:
        return factory.create_dataset(task, seed=seed, size=size, **options)
    except (TypeError, ValueError, AssertionError) as err:
        raise DataError(f"data.options {options} do not fit the task {task!r}: {err}") from err


def _task_seed(split: str, seed: int) -> int:
    """Seeds far apart: the library adds the row's index to the seed."""
    return int.from_bytes(hashlib.sha256(f"{split}/{seed}".encode()).digest()[:4], "big") // 2
