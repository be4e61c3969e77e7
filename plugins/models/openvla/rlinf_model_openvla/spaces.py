"""Whether a simulator shows what the model sees, and takes what it writes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rlinf_core.errors import ModelError

if TYPE_CHECKING:
    from rlinf_core.api import Space
    from rlinf_model_openvla.actions import Scales


def cameras_in(spaces: Mapping[str, Space], plugin: str) -> list[str]:
    """What a simulator shows. Raises `ModelError` if that is nothing."""
    cameras = [name.removeprefix("images/") for name in spaces if name.startswith("images/")]
    if not cameras:
        raise ModelError(
            f"model {plugin} needs pictures; the simulator shows none (has it an option for them?)"
        )
    return cameras


def camera_of(wanted: str, spaces: Mapping[str, Space]) -> str:
    """The camera `wanted`, or the only one. Raises `ModelError`."""
    cameras = cameras_in(spaces, "openvla")
    offered = ", ".join(cameras)
    if wanted and wanted not in cameras:
        raise ModelError(f"model.camera (openvla): the simulator has no camera {wanted!r}; it has: {offered}")
    if not wanted and len(cameras) > 1:
        raise ModelError(f"model.camera (openvla): the simulator has several cameras; name one: {offered}")
    return wanted or cameras[0]


def cameras_of(wanted: Sequence[str], spaces: Mapping[str, Space], plugin: str) -> list[str]:
    """The cameras `wanted`, or the only one. Raises `ModelError`."""
    cameras = cameras_in(spaces, plugin)
    offered = ", ".join(cameras)
    missing = [name for name in wanted if name not in cameras]
    if missing:
        raise ModelError(
            f"model.cameras ({plugin}): the simulator has no camera {missing[0]!r}; it has: {offered}"
        )
    if not wanted and len(cameras) > 1:
        raise ModelError(
            f"model.cameras ({plugin}): the simulator has several cameras; name those to be seen, in the "
            f"order that the model knows: {offered}"
        )
    return list(wanted) or cameras


def state_size(spaces: Mapping[str, Space], plugin: str) -> int:
    """Numbers of the simulator's state. Raises `ModelError` if it shows none."""
    if "state" not in spaces:
        raise ModelError(
            f"model.proprio ({plugin}): the simulator shows no state; it shows {', '.join(spaces)}"
        )
    return math.prod(spaces["state"].shape)


def check_dimensions(chosen: Sequence[int], scales: Scales, action_space: Space, plugin: str) -> None:
    """Raises `ModelError` unless the simulator takes as many as it gets."""
    taken = math.prod(action_space.shape)
    if chosen and max(chosen) >= scales.size:
        raise ModelError(
            f"model.action_dims ({plugin}): {list(chosen)}: the model writes {scales.size} dimensions, "
            "counted from 0"
        )
    given = len(chosen) or scales.size
    if given != taken:
        raise ModelError(
            f"model.action_dims ({plugin}): {given} dimensions of the model's {scales.size} (statistics of "
            f"{scales.key!r}) meet a simulator that takes {taken}; name those that it takes"
        )
