"""Makes an environment of ManiSkill from our options, with errors that name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.envs.tasks.digital_twins.base_env import BaseDigitalTwinEnv

from rlinf_core.errors import ConfigError
from rlinf_sim_maniskill.drawing import NONE

if TYPE_CHECKING:
    from rlinf_sim_maniskill.config import ManiSkillConfig

RENDER_SIZE = 256  # height and width of pictures for people
MODES = {
    "shifted": "normalized_dense",
    "normalized": "normalized_dense",
    "dense": "dense",
    "relative": "dense",
    "sparse": "sparse",
}
METHODS = {"normalized_dense": "compute_normalized_dense_reward", "dense": "compute_dense_reward"}


def make(spec: Any, config: ManiSkillConfig, count: int, renderer: str) -> BaseEnv:  # Any: of ManiSkill
    """Raises `ConfigError` for what the task does not have."""
    wanted = arguments(spec.cls, config, count, renderer)
    try:
        return spec.make(**wanted)
    except (SystemExit, EOFError) as err:  # it asked whether to download something, and nobody answered
        raise ConfigError(
            f"simulator.id (maniskill): {config.id} needs files that are not there; python -m "
            f"mani_skill.utils.download_asset {config.id} may fetch them"
        ) from err
    except AssertionError as err:
        if "supported modes" not in str(err):
            raise
        raise ConfigError(
            f"simulator.control_mode (maniskill): {str(err).replace('{}', config.control_mode)}"
        ) from err
    except TypeError as err:
        if "unexpected keyword argument" not in str(err):
            raise
        raise ConfigError(f"simulator.kwargs (maniskill): {config.id}: {err}") from err
    except RuntimeError as err:
        if "not found in the dict of registered agents" not in str(err):
            raise
        raise ConfigError(
            f"simulator.robot (maniskill): there is no robot {config.robot!r}; {_robots()}"
        ) from err


def arguments(cls: type[BaseEnv], config: ManiSkillConfig, count: int, renderer: str) -> dict[str, Any]:
    """What the task is constructed with."""
    found: dict[str, Any] = {
        "num_envs": count,
        "obs_mode": _observation_mode(cls, config),
        "reward_mode": _reward_mode(cls, config),
        "sim_backend": "physx_cuda" if count > 1 else "physx_cpu",
        "render_backend": renderer,
        "render_mode": NONE if renderer == NONE else "rgb_array",
        "enable_shadow": config.shadows,
    }
    found["render_mode"] = None if renderer == NONE else "rgb_array"
    if config.control_mode:
        found["control_mode"] = config.control_mode
    if config.robot:
        found["robot_uids"] = config.robot
    if not issubclass(cls, BaseDigitalTwinEnv):  # whose cameras are those of photographs
        found["human_render_camera_configs"] = {"width": RENDER_SIZE, "height": RENDER_SIZE}
        if config.image_size:
            found["sensor_configs"] = {"width": config.image_size, "height": config.image_size}
    if config.assets:
        found |= {"assets": config.assets, "objects": config.objects}
    return found | dict(config.kwargs)


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


def _robots() -> str:
    from mani_skill.agents import REGISTERED_AGENTS

    return f"there are: {', '.join(sorted(REGISTERED_AGENTS))}"
