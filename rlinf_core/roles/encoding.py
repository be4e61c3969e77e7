"""Rows as JSON values beside their arrays, and back; no code is run when they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.types import Prompt

Arrays = list[NDArray[Any]]
Kinds = Mapping[str, type[Any]]  # names that stand for dataclasses in what is written
FindPrompt = Callable[[int], Prompt]


def told(value: Any, arrays: Arrays, kinds: Kinds) -> Any:  # Any: what a row holds, and JSON values
    """A value of these kinds as JSON; arrays are appended. Of a prompt that is of no kind its tokens are
    told, and of the rest where it is in the dataset."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, Mapping):
        return {"mapping": {name: told(item, arrays, kinds) for name, item in value.items()}}
    if isinstance(value, list | tuple):
        return [told(item, arrays, kinds) for item in value]
    for kind, cls in kinds.items():
        if type(value) is cls:
            parts = {item.name: told(getattr(value, item.name), arrays, kinds) for item in fields(value)}
            return {kind: parts}
    if isinstance(value, Prompt):
        ids = told(value.token_ids, arrays, kinds)
        return {"prompt": {"index": value.index, "token_ids": ids, "pictured": bool(value.images)}}
    return value.item() if isinstance(value, np.generic) else value


def untold(
    value: Any, arrays: Arrays, kinds: Kinds, prompt: FindPrompt | None = None
) -> Any:  # Any: as for `told`
    """What `told` was given; `prompt` finds one by its place in the dataset. Raises `LookupError`,
    `TypeError` or `ValueError` for what `told` would not give."""
    if isinstance(value, list):
        return [untold(item, arrays, kinds, prompt) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    ((kind, parts),) = value.items()
    if kind == "prompt" and prompt is not None:
        row, ids = prompt(parts["index"]), untold(parts["token_ids"], arrays, kinds)
        images = row.images if parts["pictured"] else ()
        same = len(images) == len(row.images) and np.array_equal(row.token_ids, ids)
        return row if same else replace(row, token_ids=ids, images=images)
    found = {name: untold(item, arrays, kinds, prompt) for name, item in parts.items()}
    return found if kind == "mapping" else kinds[kind](**found)
