"""One environment of ManiSkill: a single scene on the CPU, or a batch of them on a GPU.

Axes: N environments, A action dimensions, S state size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from mani_skill.envs.sapien_env import BaseEnv
from mani_skill.utils import common

from rlinf_core.errors import ConfigError
from rlinf_core.media.resizing import resized
from rlinf_sim_maniskill.drawing import NONE, undrawn
from rlinf_sim_maniskill.layout import ActionLayout
from rlinf_sim_maniskill.making import make

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlinf_sim_maniskill.config import ManiSkillConfig

SEEDS = 1 << 32  # ManiSkill takes so many
State = dict[str, Any]  # names to arrays, and to more of the same


@dataclass
class Acted:
    """The outcome of one action in every environment."""

    rewards_N: NDArray[np.float32]
    success_N: NDArray[np.bool_]
    failure_N: NDArray[np.bool_]
    sound_N: NDArray[np.bool_]  # the reward, and the state where it is at hand, are numbers


class World:
    """`count` environments of one task, drawn by `renderer` unless that is "none"."""

    def __init__(self, spec: Any, config: ManiSkillConfig, count: int, renderer: str) -> None:
        self.count = count
        self._config = config
        self._drawn = renderer != NONE
        with self._building():
            self.env: BaseEnv = make(spec, config, count, renderer)
        if count > 1 and self.env.reconfiguration_freq:
            raise ConfigError(
                f"simulator.id (maniskill): {config.id} builds its scene anew for every episode, which a "
                "batch on the GPU cannot; use simulator.device=cpu"
            )
        self.actions = ActionLayout(self.env.single_action_space, config.id, config.raw_actions)
        self._observed: Any = self.env._init_raw_obs  # Any: tensors by name; None = not looked yet
        self._info: dict[str, Any] = {}

    def start(self, seeds: Mapping[int, int]) -> None:
        """New episodes. In a batch they are started one by one, since ManiSkill draws those that start
        together from the seed of the first; what is seen is looked at once, afterwards."""
        for n, seed in seeds.items():
            if self.count == 1:
                with self._building():
                    self._observed, self._info = self.env.reset(seed=seed % SEEDS)
            else:
                with self._looking("none"):
                    row = torch.tensor([n], device=self.env.device)
                    _, self._info = self.env.reset(seed=[seed % SEEDS] * self.count, options={"env_idx": row})
                self._observed = None

    def act(self, actions_NA: NDArray[Any], look: bool) -> Acted:
        """One action in each environment. Without `look`, pictures are not drawn yet."""
        told = common.to_tensor(self.actions.to_environment(actions_NA), device=self.env.device)
        blind = not look and self._config.images and type(self.env).get_obs is BaseEnv.get_obs
        with self._looking("state_dict" if blind else self.env._obs_mode):
            observed, paid, _, _, self._info = self.env.step(told)
        self._observed = None if blind else observed
        success_N, failure_N = self._flag("success"), self._flag("fail")
        rewards_N = self._pay(_array(paid).astype(np.float32), success_N, failure_N)
        sound_N = np.isfinite(rewards_N)
        state_NS = None if self._observed is None else self._state()
        if state_NS is not None:
            sound_N &= np.isfinite(state_NS).all(axis=1)
        return Acted(rewards_N, success_N, failure_N, sound_N)

    def look(self) -> tuple[NDArray[np.float32] | None, dict[str, NDArray[np.uint8]]]:
        """States `[N, S]` and pictures by camera `[N, H, W, 3]` of now."""
        if self._observed is None:
            self._observed = self.env.get_obs(self._info)
        return self._state(), self._images()

    def instruction(self) -> list[str] | None:
        """What the task says, if it says something."""
        says = getattr(self.env, "get_language_instruction", None)
        if self._config.instruction:
            return [self._config.instruction] * self.count
        return None if says is None else [str(text) for text in says()]

    def render(self) -> NDArray[np.uint8]:
        """`[N, H, W, 3]` by the camera that is for people."""
        picture = self.env.render_rgb_array()
        return self._pixels(picture) if picture is not None else next(iter(self._images().values()))

    def remember(self) -> State:
        """All that later steps depend on, but for what physics keeps beside its state, such as contacts of
        the last step: worlds that are restored go on alike to the last bit, and as this one does to within
        rounding."""
        state = _arrays(self.env.get_state_dict())
        own = {
            name: _array(value) for name, value in vars(self.env).items() if isinstance(value, torch.Tensor)
        }
        plain = {
            name: value for name, value in vars(self.env).items() if isinstance(value, bool | int | float)
        }
        return {"physics": state, "own": own, "plain": plain}

    def restore(self, saved: State, seeds: Mapping[int, int]) -> None:
        """Go on from what a world of the same task remembers of episodes that began with these seeds."""
        self.start(seeds)
        self._put(saved["physics"])
        for name, value in saved["own"].items():
            present = getattr(self.env, name, None)
            if isinstance(present, torch.Tensor) and present.shape == value.shape:
                present.copy_(torch.as_tensor(value))
            else:
                setattr(self.env, name, torch.as_tensor(value, device=self.env.device))
        vars(self.env).update(saved["plain"])
        self._observed = None

    def close(self) -> None:
        """Free the scenes."""
        self.env.close()

    def _put(self, state: State) -> None:
        tensors = common.to_tensor(state, device=self.env.device)
        self.env.set_state_dict(tensors)
        if "controller" in tensors:
            self.env.agent.set_controller_state(tensors["controller"])

    def _pay(
        self, paid_N: NDArray[np.float32], success_N: NDArray[np.bool_], failure_N: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        match self._config.reward:
            case "shifted":
                return paid_N - 1.0
            case "sparse" if self.env.reward_mode == NONE:
                return success_N.astype(np.float32) - failure_N.astype(np.float32)
        return paid_N

    def _flag(self, name: str) -> NDArray[np.bool_]:
        if name not in self._info:
            return np.zeros(self.count, dtype=bool)
        return np.broadcast_to(_array(self._info[name]).astype(bool), (self.count,)).copy()

    def _state(self) -> NDArray[np.float32] | None:
        observed, shown = self._observed, self._config.state
        if shown == "none":
            return None
        if shown == "robot":
            known = {name: observed[name] for name in ("agent", "extra") if name in observed}
            observed = common.flatten_state_dict(known, use_torch=True, device=self.env.device)
        elif isinstance(observed, dict):
            observed = observed["state"]
        return np.ascontiguousarray(_array(observed), dtype=np.float32)

    def _images(self) -> dict[str, NDArray[np.uint8]]:
        if not self._config.images:
            return {}
        seen = {name: data["rgb"] for name, data in self._observed["sensor_data"].items() if "rgb" in data}
        chosen = self._config.cameras or tuple(seen)
        for name in chosen:
            if name not in seen:
                raise ConfigError(
                    f"simulator.cameras (maniskill): {self._config.id} has no camera {name!r}; it has: "
                    f"{', '.join(seen) or 'none'}"
                )
        return {name: self._pixels(seen[name], self._config.image_size) for name in chosen}

    def _pixels(self, picture: torch.Tensor, size: int = 0) -> NDArray[np.uint8]:
        pixels_NHW3 = _array(picture)[..., :3].astype(np.uint8)
        return resized(pixels_NHW3, size) if size else pixels_NHW3

    @contextlib.contextmanager
    def _looking(self, mode: str) -> Iterator[None]:
        """Observe in another way meanwhile."""
        usual, self.env._obs_mode = self.env._obs_mode, mode
        try:
            yield
        finally:
            self.env._obs_mode = usual

    def _building(self) -> contextlib.AbstractContextManager[None]:
        return undrawn(not self._drawn)


def _array(value: Any) -> NDArray[Any]:  # Any: a tensor or a number
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _arrays(state: Any) -> Any:  # Any: tensors by name, nested
    if isinstance(state, Mapping):
        return {name: _arrays(value) for name, value in state.items()}
    return _array(state).copy()
