"""What an environment of robosuite keeps between its steps, as a value: physics, the model's tables, and the
numbers of its robots, controllers and objects."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tables = dict[str, NDArray[Any]]
Path = tuple[Any, ...]  # attributes, keys and numbers of items that lead from an environment to a value
_LARGEST = 1 << 16  # bytes of a table of the model that tasks may change, such as the place of a door
_NUMBERS = (bool, int, float, complex, str, bytes, type(None), np.generic)
_LEFT_OUT = ("MjSim", "MjModel", "MjData", "MjRenderContextOffscreen")  # the physics, saved on its own


def remember(env: Any) -> dict[str, Any]:  # Any: an environment of robosuite
    """All that later steps depend on."""
    import mujoco

    model, data = env.sim.model._model, env.sim.data._data
    physics = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(model, data, physics, mujoco.mjtState.mjSTATE_INTEGRATION)
    return {
        "physics": physics,
        "derived": _arrays(data),
        "tables": tables(model),
        "own": dict(_values(env, (), set())),
    }


def restore(env: Any, saved: dict[str, Any]) -> None:
    """Go on from what `remember` of an environment of the same kind returned.

    What is derived from the physics was computed a fraction of a step earlier, and pictures show it: so it is
    put back too. What differs in size is worked out anew at the next step.
    """
    import mujoco

    model, data = env.sim.model._model, env.sim.data._data
    put(model, saved["tables"])
    mujoco.mj_setState(model, data, saved["physics"], mujoco.mjtState.mjSTATE_INTEGRATION)
    mujoco.mj_forward(model, data)
    put(data, saved["derived"])
    mujoco.mj_setState(model, data, saved["physics"], mujoco.mjtState.mjSTATE_INTEGRATION)
    for path, value in saved["own"].items():
        _set(env, path, value)


def tables(model: Any) -> Tables:
    """Copies of what a task may change in its model."""
    return {name: value for name, value in _arrays(model).items() if value.nbytes <= _LARGEST}


def put(holder: Any, saved: Tables) -> None:
    """Write arrays that were copied from `holder`, or from another of the same shapes, back into it."""
    for name, value in saved.items():
        present = getattr(holder, name)
        if present.shape == value.shape:
            present[...] = value


def _arrays(holder: Any) -> Tables:
    named = {name: getattr(holder, name) for name in dir(holder) if not name.startswith("_")}
    return {
        name: value.copy()
        for name, value in named.items()
        if isinstance(value, np.ndarray) and value.flags.writeable and value.size
    }


def _values(holder: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, Any]]:
    """Every value behind an object, a dictionary or a list, with the way to it; each object once."""
    if id(holder) in seen:
        return
    seen.add(id(holder))
    for key, value in _parts(holder):
        if _is_value(value):
            yield (*path, key), value
        elif _is_walked(value):
            yield from _values(value, (*path, key), seen)


def _parts(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, dict):
        return list(holder.items())
    return list(enumerate(holder)) if isinstance(holder, list | tuple) else list(vars(holder).items())


def _is_value(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_value(each) for each in (*value.keys(), *value.values()))
    if isinstance(value, list | tuple | set):
        return all(_is_value(each) for each in value)
    return isinstance(value, _NUMBERS) or _owned(value)


def _owned(value: Any) -> bool:
    """An array of Python's own, not a view of the physics, which follows from it."""
    while isinstance(value, np.ndarray) and value.base is not None:
        value = value.base
    return isinstance(value, np.ndarray) and value.dtype != object


def _is_walked(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return True
    kind = type(value)
    fixed = isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType)
    return kind.__module__.startswith("robosuite.") and kind.__name__ not in _LEFT_OUT and not fixed


def _set(env: Any, path: Path, value: Any) -> None:
    holder = env
    for key in path[:-1]:
        holder = _follow(holder, key)
    if isinstance(holder, dict | list):
        holder[path[-1]] = value
    elif not isinstance(holder, tuple):
        vars(holder)[path[-1]] = value


def _follow(holder: Any, key: Any) -> Any:
    return holder[key] if isinstance(holder, dict | list | tuple) else vars(holder)[key]
