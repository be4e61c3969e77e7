"""Tasks of a suite: which are meant, what they say, and the states that their episodes start from."""

from __future__ import annotations

import difflib
import io
import pickle
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import ConfigError
from rlinf_sim_libero.installation import Installation, task_names

_PLACE = re.compile(r"^[A-Z0-9_]+_SCENE\d+_")  # where tasks of libero_10 and libero_90 are
_FEW = 10  # tasks that a message lists
_HARMLESS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


@dataclass(frozen=True)
class Task:
    """One task of a suite."""

    suite: str
    number: int
    name: str

    @property
    def instruction(self) -> str:
        """What the policy is told, as in the published evaluations."""
        return _PLACE.sub("", self.name).replace("_", " ")


def chosen(found: Installation, suite: str, which: str) -> list[Task]:
    """The tasks that `simulator.task` stands for. Raises `ConfigError` that names near ones."""
    tasks = [Task(suite, number, name) for number, name in enumerate(task_names(found, suite))]
    if which == "all":
        return tasks
    parts = [part.strip() for part in which.split(",")]
    return [_one(tasks, part) for part in dict.fromkeys(parts)]


def _one(tasks: list[Task], which: str) -> Task:
    for task in tasks:
        if which in (task.name, task.instruction, str(task.number)):
            return task
    names = [task.name for task in tasks]
    near = difflib.get_close_matches(which, names, n=3, cutoff=0.4)
    raise ConfigError(
        f"simulator.task (libero): {tasks[0].suite} has no task {which!r}"
        + (f"; near names: {', '.join(near)}" if near else "")
        + f"; use all, a number from 0 to {len(tasks) - 1}"
        + (f", or one of {', '.join(names)}" if len(names) <= _FEW else ", or a name")
    )


def initial_states(found: Installation, task: Task, which: str) -> NDArray[np.float64]:
    """`[I, D]` those of a task's initial states that `simulator.init_states` stands for."""
    all_ID = _read(found, task)
    if which == "all":
        return all_ID
    numbers = [number for part in which.split(",") for number in _numbers(part.strip(), which)]
    beyond = [number for number in numbers if number >= len(all_ID)]
    if beyond:
        raise ConfigError(
            f"simulator.init_states (libero): {which!r}: {task.name} has {len(all_ID)} initial states, from "
            f"0 to {len(all_ID) - 1}, and so none of the number {beyond[0]}"
        )
    return all_ID[numbers]


def _numbers(part: str, whole: str) -> range:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
    found = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not found:
        raise ConfigError(
            f"simulator.init_states (libero): {whole!r}: use all, or numbers and ranges, such as 0-39 or 3,7"
        )
    return found


def _read(found: Installation, task: Task) -> NDArray[np.float64]:
    path = found.states / task.suite / f"{task.name}.pruned_init"
    converted = path.with_name(f"{path.name}.npz")
    if converted.exists():
        with np.load(converted, allow_pickle=False) as file:
            return np.asarray(file["states"], dtype=np.float64)
    if path.exists():
        return _read_archive(path)
    raise ConfigError(
        f"simulator.suite (libero): {found.distribution} has no initial states of {task.name}: {path} is not "
        "there"
    )


def _read_archive(path: Path) -> NDArray[np.float64]:
    """An array of numbers that torch has saved; anything else in the file is refused, not executed."""
    with zipfile.ZipFile(path) as archive:
        inside = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return np.asarray(_Numbers(io.BytesIO(archive.read(inside))).load(), dtype=np.float64)


class _Numbers(pickle.Unpickler):
    """Reads arrays of numbers and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            raise ConfigError(
                f"simulator libero: a file of initial states asks for {module}.{name}, and not for numbers "
                "alone; it is not read"
            )
        return super().find_class(module, name)
