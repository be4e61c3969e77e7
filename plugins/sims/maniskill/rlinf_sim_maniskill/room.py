"""The table of the put-on-plate tasks, the things on it, and a shelf under the floor for those not in use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sapien
from mani_skill.utils.structs.actor import Actor
from transforms3d.euler import euler2mat, euler2quat

from rlinf_sim_maniskill.catalogue import Item

TOP = 0.87  # of the table, metres
CLEARANCE = 0.002  # things are put so far above it
HIDDEN = -3.0  # top of the shelf
WOOD, STONE = (0.55, 0.40, 0.26, 1.0), (0.35, 0.36, 0.38, 1.0)
Placed = tuple[Any, Any]  # position and quaternion


def build_room(scene: Any, stage: Path | None) -> None:
    """With the table of `stage`, a file of ManiSkill's, if it is there; else with one of ours."""
    if stage is not None and stage.exists():
        builder = scene.create_actor_builder()
        turned = sapien.Pose(q=[0.707, 0.707, 0, 0])
        builder.add_nonconvex_collision_from_file(str(stage), pose=turned)
        builder.add_visual_from_file(str(stage), pose=turned)
        builder.initial_pose = sapien.Pose([2.0634, 2.8313, 0.0])
        builder.build_static(name="arena")
    else:
        _build_box(scene, "table", (0.0, 0.0, TOP - 0.02), (0.6, 0.6, 0.02), WOOD)
    _build_box(scene, "floor", (0.0, 0.0, -0.05), (8.0, 8.0, 0.05), STONE)
    _build_box(scene, "shelf", (0.0, 0.0, HIDDEN - 0.1), (4.0, 4.0, 0.1), STONE)


def build_thing(scene: Any, item: Item, number: int) -> Actor:
    """An object or a plate, on the shelf."""
    material = sapien.physx.PhysxMaterial(static_friction=1.0, dynamic_friction=1.0, restitution=0.0)
    builder = scene.create_actor_builder()
    scale = [item.scale] * 3
    builder.add_multiple_convex_collisions_from_file(
        str(item.collision), scale=scale, material=material, density=item.density
    )
    builder.add_visual_from_file(str(item.looks), scale=scale)
    builder.initial_pose = sapien.Pose(*parked(item, number))
    return builder.build(name=f"{number}_{item.name}")


def standing(item: Item, place: Any, turn: float) -> Placed:
    """Of a thing on the table, the centre of its box at `place`."""
    centre = euler2mat(0, 0, turn) @ ((item.low + item.high) / 2)
    bottom = TOP + CLEARANCE - item.low[2]
    return np.array([place[0] - centre[0], place[1] - centre[1], bottom]), euler2quat(0, 0, turn)


def parked(item: Item, number: int) -> Placed:
    """Of a thing on the shelf, each in a place of its own."""
    x, y = 0.4 * (number % 8) - 1.4, 0.4 * (number // 8) - 1.4
    return np.array([x, y, HIDDEN - item.low[2]]), np.array([1.0, 0.0, 0.0, 0.0])


def turned_half(half: Any, turn: float) -> Any:  # Any: arrays [3]
    """Half sizes of the upright box around one that is turned."""
    return np.abs(euler2mat(0, 0, turn)) @ half


def _build_box(
    scene: Any, name: str, place: Sequence[float], half: Sequence[float], colour: Sequence[float]
) -> None:
    builder = scene.create_actor_builder()
    builder.add_box_collision(half_size=half)
    material = sapien.render.RenderMaterial(base_color=list(colour))
    builder.add_box_visual(half_size=half, material=material)
    builder.initial_pose = sapien.Pose(list(place))
    builder.build_static(name=name)
