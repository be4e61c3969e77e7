"""Registers the put-on-plate tasks of this plugin with ManiSkill."""

from __future__ import annotations

from rlinf_sim_maniskill.variants import PREFIX, VARIANTS

LIMIT = 80  # steps of an episode


def register() -> None:
    """Once in a process."""
    from mani_skill.utils.registration import REGISTERED_ENVS, register_env

    from rlinf_sim_maniskill.put_on_plate import PutOnPlate

    for name in VARIANTS:
        if PREFIX + name not in REGISTERED_ENVS:
            register_env(PREFIX + name, max_episode_steps=LIMIT, variant=name)(PutOnPlate)
