"""Options of the ManiSkill simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rlinf_core.errors import ConfigError

Reward = Literal["shifted", "normalized", "dense", "sparse"]
Shown = Literal["all", "robot", "none"]
Device = Literal["auto", "cpu", "cuda"]
Objects = Literal["train", "test", "all"]
OURS = {  # arguments of an environment that have an option here
    "num_envs": "train.prompts_per_step",
    "obs_mode": "simulator.state and simulator.images",
    "reward_mode": "simulator.reward",
    "control_mode": "simulator.control_mode",
    "robot_uids": "simulator.robot",
    "render_mode": "simulator.images",
    "sim_backend": "simulator.device",
    "render_backend": "simulator.device",
    "enable_shadow": "simulator.shadows",
    "max_episode_steps": "simulator.max_episode_steps",
}


@dataclass(frozen=True)
class ManiSkillConfig:
    """Which task, and what of it the policy is shown."""

    id: str  # as registered with ManiSkill, such as PushCube-v1
    imports: tuple[str, ...] = ()  # modules that register more tasks
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # Any: further arguments of the task itself
    robot: str = ""  # instead of the task's own
    control_mode: str = ""  # what actions mean, such as pd_ee_delta_pose; empty = the robot's first
    raw_actions: bool = False  # take actions in the controller's own units, not scaled to -1..1
    max_episode_steps: int = 0  # 0 = as registered
    reward: Reward = "shifted"  # as ManiSkill pays; shifted = normalized, which is 0..1, less 1
    ignore_terminations: bool = False  # go on after success and failure, to the time limit
    state: Shown = "all"  # robot = without where objects are, beside images
    images: bool = False  # show pictures, `images/CAMERA`
    cameras: tuple[str, ...] = ()  # empty = all that the task has
    image_size: int = 0  # height and width; 0 = as the task has them
    shadows: bool = False  # with shadows; slower without a GPU
    instruction: str = ""  # told to policies that read; empty = what the task says, if it does
    device: Device = "auto"  # auto = one batch on the GPU if there is one, else one by one on the CPU
    assets: str = field(default="", metadata={"path": True})  # folder of things (PutOnPlateInScene25...)
    objects: Objects = "train"  # which of them episodes are about (tasks PutOnPlateInScene25...)

    def __post_init__(self) -> None:
        if not self.id:
            raise ConfigError("simulator.id (maniskill): it is empty; name a task, such as PushCube-v1")
        if self.max_episode_steps < 0:
            raise ConfigError(
                f"simulator.max_episode_steps (maniskill): {self.max_episode_steps}: must be 0 (as "
                "registered) or more"
            )
        if self.image_size and not 8 <= self.image_size <= 1024:
            raise ConfigError(
                f"simulator.image_size (maniskill): {self.image_size}: must be 0 (as the task has it) or lie "
                "between 8 and 1024"
            )
        self._check_choices()
        if self.state != "all" and not self.images:
            raise ConfigError(
                f"simulator.state (maniskill): {self.state} without simulator.images: the policy would not "
                "see the objects"
            )
        for name in self.kwargs:
            if name in OURS:
                raise ConfigError(f"simulator.kwargs.{name} (maniskill): use {OURS[name]}")

    def _check_choices(self) -> None:
        choices = {"reward": Reward, "state": Shown, "device": Device, "objects": Objects}
        for name, kind in choices.items():
            value = getattr(self, name)
            if value not in get_args(kind):
                raise ConfigError(
                    f"simulator.{name} (maniskill): {value!r}: use one of {', '.join(get_args(kind))}"
                )
