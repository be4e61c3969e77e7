"""What the tests of OpenVLA share: a bound tiny model, what environments show, and rows of what it drew."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from rlinf_model_openvla.config import OpenVLAConfig
from rlinf_model_openvla.model import OpenVLA

from rlinf_core.api import ActionSample, Space
from rlinf_core.api.instructions import instruction_bytes
from rlinf_core.types import Trajectory

ACTION = Space(shape=(2,), low=-0.5, high=1.5)
SPACES = {"images/top": Space(shape=(40, 48, 3), low=0.0, high=255.0)}
TEXTS = ["go left", "put the Red block on the table", "go left", "stop"]
SEEDS = [11, 2**62, 13, 14]


def tiny(level: Any = "chunk", *, valued: bool = False, action: Space = ACTION, **options: Any) -> OpenVLA:
    """A bound model of the preset, or of `path`. Any: values of settings."""
    preset = {} if "path" in options else {"preset": "tiny"}
    model = OpenVLA(OpenVLAConfig(**{**preset, "value_units": 8, **options}))
    model.bind(SPACES, action)
    model.set_logprob_level(level)
    if valued:
        model.add_value_head()
    return model


def spread(module: torch.nn.Module, seed: int = 5, scale: float = 0.1) -> Any:
    """Weights far enough from where they start that actions have very different probabilities."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=random))
    return module


def shown(rows: int = 4) -> dict[str, torch.Tensor]:
    """Pictures and instructions; the first and the third are of one length."""
    random = torch.Generator().manual_seed(2)
    pictures = torch.randint(256, (4, 40, 48, 3), generator=random, dtype=torch.uint8)
    texts = torch.from_numpy(instruction_bytes(TEXTS))
    return {"images/top": pictures[:rows], "instruction": texts[:rows]}


def trajectory(
    seen: dict[str, torch.Tensor], sample: ActionSample, each: int = 1, executed: Any = None, group: int = 0
) -> Trajectory:
    """One episode of all these decisions, of `each` positions."""
    assert sample.latents is not None
    steps = each * len(sample.actions)
    return Trajectory(
        group=group,
        replica=0,
        seed=0,
        mask=np.ones(steps, dtype=bool),
        logprobs=np.zeros(steps, dtype=np.float32),
        weight_version=0,
        observations={name: tensor.numpy() for name, tensor in seen.items()},
        actions=sample.actions.numpy(),
        latents=sample.latents.numpy(),
        executed=executed,
    )
