"""The network of OpenVLA-OFT: all slots of a chunk in one pass in which everything sees everything.

Axes: M decisions, N pictures of a decision, P patches, L prompt tokens, K slots, T positions, E hidden size,
S state size, H side of a picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from rlinf_model_openvla.network import PrismaticNetwork, gathered
from rlinf_model_openvla.oft.initial import keep_variance, place_patches

if TYPE_CHECKING:
    from rlinf_model_openvla.architecture import Architecture
    from rlinf_model_openvla.oft.heads import ActionHead, ProprioProjector


class OFTNetwork(PrismaticNetwork):
    """`action_head` and `proprio_projector` exist where the settings or the checkpoint ask for them."""

    def __init__(self, architecture: Architecture, stop: int) -> None:
        super().__init__(architecture)
        self.stop = stop
        self.action_head: ActionHead | None = None
        self.proprio_projector: ProprioProjector | None = None

    def initialise(self) -> None:
        """Weights from which a small network learns; the language model has drawn its own."""
        super().initialise()
        for part in (self.vision_backbone, self.projector):
            keep_variance(part)
        for encoder in (self.vision_backbone.featurizer, self.vision_backbone.fused_featurizer):
            place_patches(encoder)

    def slots(
        self, pixels: Tensor, prompts_ML: Tensor, lengths_M: Tensor, state_MS: Tensor | None, count: int
    ) -> Tensor:
        """`[M, K, E]` states that `count` slots are told from, each one position before its slot.

        The sequence: first token, patches of all pictures, the state's token, the rest of the prompt, `count`
        slots whose embeddings are zero, the stop token; then padding, which nothing sees.
        """
        seen = self.seen(pixels, state_MS)
        text, shown_MT = self._text(prompts_ML, lengths_M, count)
        embedded = torch.cat([text[:, :1], seen.to(text.dtype), text[:, 1:]], dim=1)
        before = seen.shape[1]
        mask = functional.pad(shown_MT, (before, 0), value=True)[:, None, None]
        found = self.language_model.model(inputs_embeds=embedded, attention_mask=mask, use_cache=False)
        states: Tensor = found.last_hidden_state
        return gathered(states, lengths_M + (before - 1), count)

    def seen(self, pixels: Tensor, state_MS: Tensor | None) -> Tensor:
        """`[M, N * P (+ 1), E]` for pictures `[M, 6 * N, H, H]`: patches of one picture after the other, and
        the state."""
        pictures = pixels.shape[1] // 6
        patches = self.patches(pixels.unflatten(1, (pictures, 6)).flatten(0, 1))
        rows: Tensor = patches.unflatten(0, (-1, pictures)).flatten(1, 2)
        if self.proprio_projector is None or state_MS is None:
            return rows
        token_ME: Tensor = self.proprio_projector(state_MS.to(self.projector.fc1.weight.dtype))
        return torch.cat([rows, token_ME[:, None].to(rows.dtype)], dim=1)

    def _text(self, prompts_ML: Tensor, lengths_M: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Embeddings `[M, L + K + 1, E]` of prompts, slots and stop, and where they are no padding."""
        ids_MT = functional.pad(prompts_ML, (0, count + 1))
        ids_MT = ids_MT.scatter(1, (lengths_M + count)[:, None], self.stop)
        at_T = torch.arange(ids_MT.shape[1], device=ids_MT.device)
        slot_MT = (at_T >= lengths_M[:, None]) & (at_T < lengths_M[:, None] + count)
        text: Tensor = self.language_model.get_input_embeddings()(ids_MT)
        return text.masked_fill(slot_MT[..., None], 0.0), at_T <= lengths_M[:, None] + count
