"""Options of the robosuite simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlinf_core.errors import ConfigError

REWARDS = ("shifted", "dense", "sparse")
OURS = {  # arguments of robosuite's environments that this plugin gives, and the option that sets them
    "robots": "robots",
    "controller_configs": "controller",
    "camera_names": "cameras",
    "camera_heights": "image_size",
    "camera_widths": "image_size",
    "camera_depths": "cameras",
    "camera_segmentations": "cameras",
    "use_camera_obs": "cameras",
    "has_offscreen_renderer": "cameras",
    "has_renderer": "cameras",
    "renderer": "cameras",
    "horizon": "max_episode_steps",
    "ignore_done": "max_episode_steps",
    "hard_reset": "reload",
    "reward_shaping": "reward",
    "control_freq": "control_hz",
    "seed": "reload",
}


@dataclass(frozen=True)
class RobosuiteConfig:
    """Which task with which robots, what of it the policy is shown, and what its steps pay."""

    task: str = "Lift"  # a name such as Lift, Door, PickPlaceCan or TwoArmLift
    robots: tuple[str, ...] = ()  # none = a Panda, or two of them for tasks of two arms
    controller: str = ""  # a composite or part controller, or a .json file; none = the robots' own
    control_hz: float = 20.0  # actions in a simulated second
    max_episode_steps: int = 200  # the time limit, in actions
    reward: Literal["shifted", "dense", "sparse"] = (
        "shifted"  # dense = robosuite's, at most 1; shifted = dense - 1; sparse = 1 for success
    )
    keys: tuple[str, ...] = ()  # what the state is made of; none = proprioception and objects
    state: bool = True  # show a state
    cameras: tuple[str, ...] = ()  # pictures to show, such as agentview or robot0_eye_in_hand
    image_size: int = 84  # height and width of pictures
    shadows: bool = False  # with shadows, reflections and smooth edges; many times slower without a GPU
    instruction: str = ""  # what policies that read are told; none = nothing
    reload: bool = False  # build the scene anew for every episode, so that sizes differ too; slower
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # Any: other arguments of the environment

    def __post_init__(self) -> None:
        if not self.task:
            raise ConfigError("simulator.task (robosuite): it is empty; name a task, such as Lift")
        if self.reward not in REWARDS:
            raise ConfigError(f"simulator.reward (robosuite): {self.reward!r}: use {', '.join(REWARDS)}")
        if self.max_episode_steps < 1:
            raise ConfigError(
                f"simulator.max_episode_steps (robosuite): {self.max_episode_steps}: must be 1 or more"
            )
        if not 1 <= self.control_hz <= 500:
            raise ConfigError(
                f"simulator.control_hz (robosuite): {self.control_hz}: must lie between 1 and 500, the "
                "steps of physics in a second"
            )
        if not (self.state or self.cameras):
            raise ConfigError(
                "simulator.state (robosuite): false without cameras: the policy would see nothing"
            )
        if not 8 <= self.image_size <= 1024:
            raise ConfigError(
                f"simulator.image_size (robosuite): {self.image_size}: must lie between 8 and 1024"
            )
        if len(set(self.cameras)) < len(self.cameras):
            raise ConfigError(f"simulator.cameras (robosuite): {', '.join(self.cameras)}: one is named twice")
        for name in self.kwargs:
            if name in OURS:
                raise ConfigError(
                    f"simulator.kwargs.{name} (robosuite): this plugin sets it; use simulator.{OURS[name]}"
                )
