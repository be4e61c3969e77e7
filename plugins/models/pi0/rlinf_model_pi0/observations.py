"""Between a simulator and the network: which pictures, which instruction, which units.

Axes: M decisions, N environments, C actions of a chunk, A action dimensions, S state size, L tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rlinf_core.api import Space
from rlinf_core.api.instructions import instruction_texts
from rlinf_core.errors import ModelError
from rlinf_model_pi0.config import Pi0Config
from rlinf_model_pi0.lerobot import Facts
from rlinf_model_pi0.pictures import stack
from rlinf_model_pi0.prompts import Prompts, byte_tokenizer, load_tokenizer
from rlinf_model_pi0.statistics import Affine, find_statistics


class Observations:
    """One simulator's spaces, fitted to one architecture. Raises `ModelError` where they do not fit."""

    def __init__(
        self,
        config: Pi0Config,
        architecture: Any,  # Any: a transformers configuration
        observation_space: Mapping[str, Space],
        action_space: Space,
        five: bool = False,
    ) -> None:
        self.config = config
        self._five = five
        self._vlm = architecture.vlm_config
        self._sizes = (architecture.max_state_dim, architecture.max_action_dim)
        self._whole = (architecture.chunk_size, architecture.max_action_dim)
        if action_space.n is not None:
            raise ModelError("model pi0 acts in a continuous box; the simulator's actions are discrete")
        self.dimensions = math.prod(action_space.shape)
        self.chunk = config.chunk or architecture.chunk_size
        self.cameras = _cameras(config, observation_space)
        shapes = {name: observation_space[f"images/{name}"].shape for name in self.cameras}
        self._pictures = {name: (shape[0], shape[1]) for name, shape in shapes.items()}
        state = observation_space.get("state")
        self._states = 0 if state is None else math.prod(state.shape)
        if not self._states and not self.cameras:
            raise ModelError(
                f"model pi0 needs an 'images/CAMERA' or 'state' observation; the simulator offers "
                f"{', '.join(observation_space) or 'nothing'}"
            )
        _fits("max_action_dim", "the simulator's actions have", self.dimensions, architecture)
        _fits("max_state_dim", "the simulator's state has", self._states, architecture)
        _fits("chunk_size", "model.chunk is", self.chunk, architecture)
        self.statistics = find_statistics(config.statistics, config.path)
        self._action_units = self._of_actions(action_space)
        self._state_units = self._of_state()

    def collate(self, rows: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, Tensor]:
        """`tokens` `[M, L]`, `state` `[M, S]` and pictures of all decisions of these rows."""
        names = [*(f"images/{camera}" for camera in self.cameras), *(["state"] if self._states else [])]
        names += ["instruction"] if "instruction" in rows[0] else []
        return self.collate_shown(
            {name: torch.from_numpy(np.concatenate([row[name] for row in rows])) for name in names}
        )

    def collate_shown(self, shown: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same of environments, `[N, ...]`."""
        first = next(iter(shown.values()))
        inputs = {f"images/{camera}": shown[f"images/{camera}"] for camera in self.cameras}
        if self._states:
            inputs["state"] = shown["state"].flatten(1)
        else:
            inputs["state"] = torch.zeros(len(first), 0, device=first.device)
        texts = [""] * len(first)
        if "instruction" in shown:
            texts = instruction_texts(shown["instruction"].cpu().numpy())
        asked = [text or self.config.prompt for text in texts]
        told = self._five and self.config.state_in_prompt
        told_MS = self._units(inputs["state"]).cpu().numpy() if told else None
        tokens_ML = self.prompts.encode(asked, self._image_tokens, told_MS)
        return {**inputs, "tokens": tokens_ML.to(first.device)}

    def pictures(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """`[M, cameras, 3, height, width]` for the vision tower."""
        size = self._vlm.vision_config.image_size
        return stack([inputs[f"images/{camera}"] for camera in self.cameras], size)

    def state(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """`[M, S]` in the network's units, padded."""
        state_MS = self._units(inputs["state"])
        return functional.pad(state_MS, (0, self._sizes[0] - state_MS.shape[1]))

    def _units(self, state_MS: Tensor) -> Tensor:
        """Of the network."""
        state_MS = state_MS.float()
        return state_MS if self._state_units is None else self._state_units.forward(state_MS)

    def actions(self, units_NCA: Tensor) -> Tensor:
        """What is executed, in the simulator's units."""
        return self._action_units.back(units_NCA[:, : self.chunk, : self.dimensions])

    def padded_units(self, actions_NCA: Tensor) -> Tensor:
        """What `actions` makes these of, `[N, chunk, dimensions]` of the network; 0 where it has more."""
        units_NCA = self._action_units.forward(actions_NCA.float())
        missing = self._whole[0] - units_NCA.shape[1], self._whole[1] - units_NCA.shape[2]
        return functional.pad(units_NCA, (0, missing[1], 0, missing[0]))

    def save(self, path: Path) -> None:
        """Write tokenizer and statistics beside exported weights."""
        self.prompts.save(path)
        if self.statistics is not None:
            self.statistics.save(path)  # first of those that are looked for

    def told(self, dtype: str) -> Facts:
        """What other programs are told of the simulator and of the units."""
        return Facts(
            self._five,
            dtype,
            self._pictures,
            self._states,
            self.dimensions,
            self.chunk,
            self._room,
            self._state_units,
            self._action_units,
        )

    @cached_property
    def prompts(self) -> Prompts:
        """Token ids of instructions."""
        config = self.config
        if config.preset and not config.tokenizer:
            tokenizer = byte_tokenizer()
        else:
            key = "model.tokenizer" if config.tokenizer else "model.path"
            tokenizer = load_tokenizer(Path(config.tokenizer or config.path), key)
        return Prompts(tokenizer, self._vlm.image_token_id, self._room)

    @property
    def _room(self) -> int:
        """Tokens of a prompt."""
        return self.config.prompt_tokens or (200 if self._five else 48)

    @property
    def _image_tokens(self) -> int:
        vision = self._vlm.vision_config
        side = int(vision.image_size // vision.patch_size)
        return len(self.cameras) * side**2

    @property
    def _normalization(self) -> str:
        if self.config.normalization == "auto":
            return "quantiles" if self._five else "mean_std"
        return self.config.normalization

    def _of_actions(self, space: Space) -> Affine:
        """By statistics, or else from -1..1 to the simulator's box, if it is bounded."""
        if self.statistics is not None:
            return self.statistics.affine("actions", self._normalization, self.dimensions)
        bounded = math.isfinite(space.low) and math.isfinite(space.high)
        centre, half = ((space.high + space.low) / 2, (space.high - space.low) / 2) if bounded else (0.0, 1.0)
        return Affine(torch.tensor(centre), torch.tensor(half))

    def _of_state(self) -> Affine | None:
        if self.statistics is None or not self._states:
            return None
        return self.statistics.affine("state", self._normalization, self._states)


def _cameras(config: Pi0Config, observation_space: Mapping[str, Space]) -> list[str]:
    offered = sorted(name.removeprefix("images/") for name in observation_space if name.startswith("images/"))
    missing = [camera for camera in config.cameras if camera not in offered]
    if missing:
        raise ModelError(
            f"model.cameras (pi0): the simulator has no camera {missing[0]!r}; it has "
            f"{', '.join(offered) or 'none'}"
        )
    return list(config.cameras) or offered


def _fits(name: str, what: str, found: int, architecture: Any) -> None:  # Any: a transformers configuration
    most = getattr(architecture, name)
    if found > most:
        raise ModelError(f"model pi0: {what} {found}, and the checkpoint's {name} is {most}")
