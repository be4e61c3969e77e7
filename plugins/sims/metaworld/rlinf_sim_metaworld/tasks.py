"""Names of Meta-World's tasks, and their environments."""

from __future__ import annotations

import difflib
from typing import Any

from rlinf_core.errors import ConfigError
from rlinf_core.media.offscreen import load_mujoco

SETS = ("MT10", "MT50")
INSTALL = "pip install 'metaworld>=3.1,<4'"


def _dictionary() -> Any:  # Any: Meta-World's untyped module
    load_mujoco("metaworld", INSTALL)
    try:
        from metaworld import env_dict
    except ImportError as err:
        raise ConfigError(
            f"simulator metaworld needs Meta-World, which cannot be imported: {err}; install it by {INSTALL}"
        ) from err
    return env_dict


def names() -> list[str]:
    """Of all tasks."""
    return sorted(_dictionary().ALL_V3_ENVIRONMENTS)


def chosen(task: str) -> list[str]:
    """The tasks that a name stands for. Raises `ConfigError` that names near ones."""
    found = _dictionary()
    if task in SETS:
        return list(found.MT10_V3 if task == "MT10" else found.MT50_V3)
    known = names()
    if task in known:
        return [task]
    near = difflib.get_close_matches(task, [*known, *SETS], n=3, cutoff=0.4)
    raise ConfigError(
        f"simulator.task (metaworld): there is no task {task!r}"
        + (f"; near names: {', '.join(near)}" if near else "")
        + f"; all: {', '.join(known)}; or {' or '.join(SETS)}"
    )


def make(task: str) -> Any:  # Any: an environment of Meta-World, which is untyped
    """The environment of one task, which shows its goal; limits are left to the caller."""
    env = _dictionary().ALL_V3_ENVIRONMENTS[task]()
    env._partially_observable = False
    env._set_task_called = True
    vars(env).pop("sawyer_observation_space", None)  # computed anew, with the goal
    env.max_path_length = 1 << 62
    return env
