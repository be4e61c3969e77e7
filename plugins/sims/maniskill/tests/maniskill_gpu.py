"""Plays a batch of environments on a GPU. Runs in ManiSkill's own environment; prints JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from rlinf_sim_maniskill.config import ManiSkillConfig
from rlinf_sim_maniskill.simulator import ManiSkillSimulator

SEEDS = [3, 4, 5, 3]


def played() -> dict[str, Any]:
    """What holds for a batch."""
    one = ManiSkillSimulator(ManiSkillConfig("PickCube-v1", max_episode_steps=4), 4, 0)
    one.auto_reset = False
    first = one.reset(SEEDS).state
    actions = np.random.default_rng(0).uniform(-1, 1, (4, 4, 8)).astype(np.float32)
    two = one.step(actions[:, :2]).observation.state
    restarted = one.restart({1: 4}).state
    again = one.reset(SEEDS).state
    one.step(actions[:, :2])
    state = one.save_state()
    then = one.step(actions[:, 2:3]).observation.state
    one.load_state(state)
    restored = one.step(actions[:, 2:3]).observation.state
    one.reset(SEEDS)
    whole = one.step(actions)
    return {
        "one_batch": len(one._worlds) == 1,
        "same_start": bool(np.array_equal(first, again)),
        "seed_decides": bool(np.array_equal(first[0], first[3]) and not np.array_equal(first[0], first[1])),
        "others_stay": bool(
            np.array_equal(restarted[[0, 2, 3]], two[[0, 2, 3]]) and np.array_equal(restarted[1], first[1])
        ),
        "limit": whole.truncated_NC.tolist(),
        "restored": float(np.abs(then - restored).max()),
    }


if __name__ == "__main__":
    print(json.dumps(played() if torch.cuda.is_available() else {"skipped": "needs a CUDA device"}))
