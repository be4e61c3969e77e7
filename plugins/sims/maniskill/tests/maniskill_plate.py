"""Plays the put-on-plate tasks with boxes and trays in place of the real things.

Runs in ManiSkill's own environment; the argument is an empty folder. Prints JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rlinf_sim_maniskill.config import ManiSkillConfig
from rlinf_sim_maniskill.drawing import renderer
from rlinf_sim_maniskill.simulator import ManiSkillSimulator
from standins import write_assets

from rlinf_core.errors import ConfigError

HAND, THING, PLATE = slice(18, 21), slice(21, 24), slice(28, 31)  # of the state, behind 9 angles and speeds
UP, GRASP = np.array([0, 0, 0.1]), np.array([0, 0, 0.012])
HIGH = 1.0  # metres


def simulator(task: str, assets: Path, **options: Any) -> ManiSkillSimulator:
    settings = {"robot": "panda", "control_mode": "pd_ee_delta_pos", "reward": "dense", **options}
    return ManiSkillSimulator(
        ManiSkillConfig(f"PutOnPlateInScene25{task}", assets=str(assets), **settings), 1, 0
    )


def expert(state: NDArray[np.float64], phase: int) -> tuple[NDArray[np.float32], bool]:
    """The action of a phase, and whether the hand is where it should be."""
    hand, thing, plate = state[HAND], state[THING], state[PLATE]
    target = (
        thing + UP,
        thing + GRASP,
        thing + GRASP,
        np.array([*hand[:2], HIGH]),
        np.array([*plate[:2], HIGH]),
        np.array([*plate[:2], 0.895]),
    )[phase]
    towards = (target - hand) * [-1, -1, 1] / 0.1  # the robot looks the other way
    grip = -1.0 if phase >= 2 else 1.0
    return np.append(np.clip(towards, -1, 1), grip).astype(np.float32), bool(
        np.linalg.norm(target - hand) < 0.012
    )


def placed(assets: Path, seed: int) -> dict[str, Any]:
    """A whole episode of the expert: what was paid, and how it ended."""
    one = simulator("Main-v3", assets)
    shown, phase, waited, paid = one.reset([seed]), 0, 0, []
    instruction = shown.instruction
    while True:
        action, there = expert(shown.state[0].astype(np.float64), phase)
        waited += 1
        if (there and phase != 2) or (phase == 2 and waited >= 3):
            phase, waited = min(phase + 1, 5), 0
        outcome = one.step(action[None, None])
        shown = outcome.observation
        paid.append(round(float(outcome.rewards_NC[0, 0]), 3))
        if outcome.terminated_NC.any() or outcome.truncated_NC.any():
            return {
                "instruction": instruction,
                "paid": sorted(set(paid)),
                "falls": bool((np.diff(paid) < 0).any()),
                "held_after": paid.index(0.2) - paid.index(0.1),
                "success": bool(outcome.success_N[0] and outcome.terminated_NC[0, 0]),
            }


def arranged(task: str, assets: Path, **options: Any) -> dict[str, Any]:
    """What stands on the table, and where it and the robot go in six idle steps."""
    one = simulator(task, assets, **options)
    begun = one.reset([3])
    env = one._worlds[0][1].env
    heights = [float(actor.pose.p[0, 2]) for actor in (*env._objects, *env._plates)]
    still = np.zeros((1, 6, 4), dtype=np.float32)
    then = one.step(still).observation.state[0]
    return {
        "on_table": sum(height > 0.8 for height in heights),
        "instruction": begun.instruction[0],
        "angles": begun.state[0, :7].tolist(),
        "moved": float(np.linalg.norm(then[THING][:2] - begun.state[0, THING][:2])),
        "plate": env.episodes[0].plate,
        "object": env.episodes[0].object,
    }


def pictures(assets: Path) -> dict[str, Any]:
    """The corner of a picture, where nothing but the table is, and how many pixels are like it."""
    try:
        renderer(False)
    except ConfigError as err:
        return {"skipped": str(err)}
    one = simulator("Main-v3", assets, images=True, state="none", image_size=64)
    seen = one.reset([3]).images["3rd_view_camera"][0]
    drawn = one.render()
    table = one._worlds[0][1].env.episodes[0].table
    other = simulator("Main-v3", assets, images=True, state="none", image_size=64)
    other.reset([3])
    actions = np.random.default_rng(0).uniform(-1, 1, (1, 3, 4)).astype(np.float32)
    whole = one.step(actions).observation.images["3rd_view_camera"]
    parts = [other.step(actions[:, c : c + 1]).observation.images["3rd_view_camera"] for c in range(3)]
    same = (seen == seen[-1, 0]).all(axis=-1).mean()
    return {
        "corner": seen[-1, 0].tolist(),
        "table": table,
        "share": float(same),
        "drawn": list(drawn.shape),
        "chunked": bool((whole == parts[-1]).all() and (whole != parts[0]).any()),
    }


def refused(**options: Any) -> str:
    try:
        simulator("VisionWhole05-v1", **options)
    except ConfigError as err:
        return str(err)
    return ""


if __name__ == "__main__":
    root = Path(sys.argv[1])
    bare, whole = write_assets(root / "bare"), write_assets(root / "whole", tables=17)
    found = {
        "placed": [placed(bare, seed) for seed in (1, 2)],
        "main": arranged("Main-v3", bare, objects="test"),
        "plate": arranged("Plate-v1", bare, objects="test"),
        "objects": arranged("MultiCarrot-v1", bare),
        "plates": arranged("MultiPlate-v1", bare),
        "pose": arranged("EEPose-v1", bare, objects="test"),
        "moved": arranged("PositionChangeTo-v1", bare, objects="test"),
        "pictures": pictures(whole),
        "without_tables": refused(assets=bare),
        "robot": refused(assets=bare, robot="fetch"),
        "widowx": refused(assets=bare, robot=""),
    }
    print(json.dumps(found))
