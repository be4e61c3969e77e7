"""Makes an environment of ManiSkill from our options, with errors that name them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mani_skill.agents import REGISTERED_AGENTS
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.tasks.digital_twins.base_env import BaseDigitalTwinEnv
from mani_skill.utils import download_asset

from rlinf_core.errors import ConfigError
from rlinf_sim_maniskill.drawing import NONE
from rlinf_sim_maniskill.registry import robots

if TYPE_CHECKING:
    from rlinf_sim_maniskill.config import ManiSkillConfig

RENDER_SIZE = 256  # height and width of pictures for people
MODES = {
    "shifted": "normalized_dense",
    "normalized": "normalized_dense",
    "dense": "dense",
    "sparse": "sparse",
}
KNOWN = {  # parts of what ManiSkill says, and the setting it is about
    "supported modes": "control_mode",
    "unexpected keyword argument": "kwargs",
    "not found in the dict of registered agents": "robot",
    "Download it by running": "id",
}
PHOTOGRAPHED = "widowx250s"  # robots that bring such a camera
METHODS = {"normalized_dense": "compute_normalized_dense_reward", "dense": "compute_dense_reward"}


def make(spec: Any, config: ManiSkillConfig, count: int, renderer: str) -> BaseEnv:  # Any: of ManiSkill
    """Raises `ConfigError` for what the task does not have."""
    wanted = arguments(spec, config, count, renderer)
    try:
        with _unasked():
            return spec.make(**wanted)
    except (FileNotFoundError, ImportError) as err:
        raise ConfigError(
            f"simulator.id (maniskill): {config.id} lacks something: {err}; ManiSkill's page of the task "
            "says what to install, or to download by "
            f"`{sys.executable} -m mani_skill.utils.download_asset NAME`"
        ) from err
    except (AssertionError, RuntimeError, TypeError) as err:
        for part, name in KNOWN.items():
            if part in str(err):
                there = f"; there are: {', '.join(sorted(REGISTERED_AGENTS))}" if name == "robot" else ""
                raise ConfigError(f"simulator.{name} (maniskill): {config.id}: {err}{there}") from err
        raise


@contextlib.contextmanager
def _unasked() -> Iterator[None]:
    """Meanwhile a question of ManiSkill on the terminal is an error."""
    usual, download_asset.prompt_yes_no = download_asset.prompt_yes_no, _refuse
    try:
        yield
    finally:
        download_asset.prompt_yes_no = usual


def _refuse(question: str) -> bool:
    """ManiSkill would ask on the terminal whether to download something, and end the process."""
    raise FileNotFoundError(question.partition(" Would you like")[0])


def arguments(spec: Any, config: ManiSkillConfig, count: int, renderer: str) -> dict[str, Any]:
    """What the task is constructed with."""
    cls = spec.cls
    found: dict[str, Any] = {
        "num_envs": count,
        "obs_mode": _observation_mode(cls, config),
        "reward_mode": _reward_mode(cls, config),
        "sim_backend": "physx_cuda" if count > 1 else "physx_cpu",
        "render_backend": renderer,
        "render_mode": None if renderer == NONE else "rgb_array",
        "enable_shadow": config.shadows,
    }
    if config.control_mode:
        found["control_mode"] = config.control_mode
    if config.robot:
        found["robot_uids"] = config.robot
    if not issubclass(cls, BaseDigitalTwinEnv):
        found["human_render_camera_configs"] = {"width": RENDER_SIZE, "height": RENDER_SIZE}
    if config.image_size and not _like_photographs(spec, config):
        found["sensor_configs"] = {"width": config.image_size, "height": config.image_size}
    if "variant" in spec.default_kwargs:  # a task of ours
        found |= {"assets": config.assets, "objects": config.objects}
    elif config.assets:
        raise ConfigError(
            f"simulator.assets (maniskill): {config.id} takes none; tasks PutOnPlateInScene25... do"
        )
    return found | dict(config.kwargs)


def _like_photographs(spec: Any, config: ManiSkillConfig) -> bool:
    """Whether cameras are those of real ones, whose pictures are resized, for they would be cut otherwise."""
    return issubclass(spec.cls, BaseDigitalTwinEnv) or any(
        uid.startswith(PHOTOGRAPHED) for uid in robots(config, spec)
    )


def _observation_mode(cls: type[BaseEnv], config: ManiSkillConfig) -> str:
    known = cls.SUPPORTED_OBS_MODES
    if not config.images:
        modes = ["state"]
    elif config.state == "all":
        modes = ["rgb+state", "rgb+segmentation+state"]
    else:
        modes = ["rgb", "rgb+segmentation"]
    for mode in modes:
        if mode in known or ("any_textures" in known and config.images):
            return mode
    raise ConfigError(
        f"simulator.state (maniskill): {config.id} does not show {modes[0]}; it shows {', '.join(known)}: "
        "use simulator.images=true with simulator.state=robot or none"
    )


def _reward_mode(cls: type[BaseEnv], config: ManiSkillConfig) -> str:
    mode = MODES[config.reward]
    if mode == "sparse":
        return "sparse" if "sparse" in cls.SUPPORTED_REWARD_MODES else NONE
    method = METHODS[mode]
    if mode in cls.SUPPORTED_REWARD_MODES and getattr(cls, method) is not getattr(BaseEnv, method):
        return mode
    paid = [name for name, each in MODES.items() if _has(cls, each)]
    raise ConfigError(
        f"simulator.reward (maniskill): {config.id} does not pay by {config.reward!r}; use one of: "
        f"{', '.join(paid)}"
    )


def _has(cls: type[BaseEnv], mode: str) -> bool:
    if mode == "sparse":
        return True
    return mode in cls.SUPPORTED_REWARD_MODES and getattr(cls, METHODS[mode]) is not getattr(
        BaseEnv, METHODS[mode]
    )
