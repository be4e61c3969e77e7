"""What the tests of OpenVLA-OFT share: a bound small model, what environments show, rows of what it drew, and
the sequences of the contract spelt out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from openvla_support import ACTION, SEEDS, TEXTS, spread, trajectory
from rlinf_model_openvla.oft.config import OpenVLAOFTConfig, TinySizes
from rlinf_model_openvla.oft.model import OpenVLAOFT

from rlinf_core.api import ActionSample, Space
from rlinf_core.api.instructions import instruction_bytes

__all__ = ["ACTION", "SEEDS", "TEXTS", "spread", "trajectory"]
SPACES = {
    "images/top": Space(shape=(40, 48, 3), low=0.0, high=255.0),
    "images/wrist": Space(shape=(32, 32, 3), low=0.0, high=255.0),
    "state": Space(shape=(3,), low=-np.inf, high=np.inf),
}
SIZES = TinySizes(image_size=32, patch_size=8, bins=16, initializer_range=0.2, state_bound=2.0)


def small(
    level: Any = "chunk", *, valued: bool = False, action: Space = ACTION, **options: Any
) -> OpenVLAOFT:
    """A bound model of three actions that sees two pictures and a state, or of `path`. Any: settings."""
    source = {} if "path" in options else {"preset": "tiny", "sizes": SIZES, "proprio": "state"}
    common = {"chunk": 3, "value_units": 8, "cameras": ("wrist", "top")}
    model = OpenVLAOFT(OpenVLAOFTConfig(**{**source, **common, **options}))
    model.bind(SPACES, action)
    model.set_logprob_level(level)
    if valued:
        model.add_value_head()
    return model


def shown(rows: int = 4) -> dict[str, torch.Tensor]:
    """Pictures, states of which some lie beyond the bound, and instructions; two are of one length."""
    random = torch.Generator().manual_seed(2)
    seen = {
        name: torch.randint(256, (4, *space.shape), generator=random, dtype=torch.uint8)
        for name, space in SPACES.items()
        if name != "state"
    }
    seen["state"] = 2.0 * torch.randn(4, 3, generator=random)
    seen["instruction"] = torch.from_numpy(instruction_bytes(TEXTS))
    return {name: value[:rows] for name, value in seen.items()}


def first(sample: ActionSample, count: int = 1) -> ActionSample:
    """The first decisions of a sample."""
    return ActionSample(**{name: None if v is None else v[:count] for name, v in vars(sample).items()})


@torch.no_grad()
def spelt_out(model: OpenVLAOFT, module: Any, slots: int) -> torch.Tensor:
    """`[N, slots, E]` states, one sequence after the other: first token, patches of the wrist's picture,
    those of the top's, the state, the question and the lone space, slots of zeros, the stop token (2); every
    position sees every other; a slot is told from the position before it."""
    seen, found = shown(), []
    embed = module.language_model.get_input_embeddings()
    for n, text in enumerate(TEXTS):
        asked = f"In: What action should the robot take to {text.lower()}?\nOut:"
        ids = torch.tensor([1, *model.prompts.tokenizer.encode(asked, add_special_tokens=False).ids, 259])
        parts = [embed(ids[:1])]
        for camera in ("images/wrist", "images/top"):
            pixels = model.pictures.pixels(seen[camera][n : n + 1])
            parts.append(module.projector(module.vision_backbone(pixels))[0])
        if module.proprio_projector is not None:
            state = (seen["state"][n] / 2.0).clamp(-1.0, 1.0)  # -2..2 is the state's bound
            layer1, layer2 = module.proprio_projector.fc1, module.proprio_projector.fc2
            parts.append(layer2(torch.nn.functional.gelu(layer1(state)))[None])
        parts += [embed(ids[1:]), torch.zeros(slots, embed.embedding_dim), embed(torch.tensor([2]))]
        sequence = torch.cat(parts)[None]
        open_mask = torch.zeros(
            1, 1, sequence.shape[1], sequence.shape[1]
        )  # added to every pair: no causality
        states = module.language_model.model(inputs_embeds=sequence, attention_mask=open_mask)
        found.append(states.last_hidden_state[0, -slots - 2 : -2])
    return torch.stack(found)
