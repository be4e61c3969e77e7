"""The networks' shared parts, and OpenVLA's own: features of pictures, projected between the first token and
the rest of a prompt, and Llama.

Axes: M decisions, P patches, L prompt tokens, K action tokens, E hidden size, V bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlinf_model_openvla.vision import FusedBackbone

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlinf_model_openvla.architecture import Architecture


class PrismaticNetwork(nn.Module):
    """Encoders, projector and language model. Its weights have the names of openvla-7b; `value_head` exists
    only if it was asked for."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.tokens = architecture.tokens
        self.vision_backbone = FusedBackbone(*architecture.encoders, architecture.image_size)
        text = LlamaConfig(**architecture.text)
        self.projector = Projector(self.vision_backbone.embed_dim, text.hidden_size)
        self.language_model: Any = LlamaForCausalLM(text)  # Any: transformers modules are not typed
        self.value_head: nn.Sequential | None = None

    def initialise(self) -> None:
        """Random tokens of the encoders; layers have drawn their weights."""
        self.vision_backbone.featurizer.initialise()
        self.vision_backbone.fused_featurizer.initialise()

    def refill(self) -> None:
        """Rotary frequencies, which no checkpoint holds, in float32: a network that was made on no device has
        none, one that was cast has coarse ones."""
        model = self.language_model.model
        model.rotary_emb = type(model.rotary_emb)(model.config)

    def add_value_head(self, units: int) -> None:
        """Two float32 layers that say 0 before they are trained."""
        last = nn.Linear(units, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.value_head = nn.Sequential(nn.Linear(self.hidden_size, units), nn.GELU(), last)

    @property
    def hidden_size(self) -> int:
        """Of the language model."""
        return self.projector.fc3.out_features

    def get_output_embeddings(self) -> nn.Module:
        """The layer that adapters leave alone."""
        head: nn.Module = self.language_model.lm_head
        return head

    def blocks(self) -> list[nn.Module]:
        """Of encoders and language model, those that are used."""
        vision = self.vision_backbone
        encoders = [*vision.featurizer.used_blocks(), *vision.fused_featurizer.used_blocks()]
        return [*encoders, *self.language_model.model.layers]

    def logits(self, states: Tensor) -> Tensor:
        """Float32 `[..., V]` of the action tokens alone, lowest id first: no other may be drawn."""
        tail = slice(self.tokens.first, self.tokens.vocabulary)
        return functional.linear(states, self.language_model.lm_head.weight[tail]).float()

    def patches(self, pixels: Tensor) -> Tensor:
        """`[M, P, E]` of pictures, each normalised for either encoder."""
        features: Tensor = self.projector(self.vision_backbone(pixels.to(self.projector.fc1.weight.dtype)))
        return features


class OpenVLANetwork(PrismaticNetwork):
    """Tells every action token from what stands before it."""

    def hidden(self, pixels: Tensor, prompts_ML: Tensor, lengths_M: Tensor, tokens_MK: Tensor) -> Tensor:
        """`[M, K + 1, E]` states that each action token, and one after the last, is told from.

        Prompts are right-padded; actions follow at once, so that padding stands behind all that is read.
        """
        count = tokens_MK.shape[1]
        padded_ML = functional.pad(prompts_ML, (0, count))
        places_MK = lengths_M[:, None] + torch.arange(count, device=lengths_M.device)
        embedded = self._embed(padded_ML.scatter(1, places_MK, tokens_MK), pixels)
        states = self.language_model.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        return gathered(states, embedded.shape[1] - padded_ML.shape[1] + lengths_M - 1, count + 1)

    def generate(
        self, pixels: Tensor, prompts_ML: Tensor, count: int, choose: Callable[[Tensor, int], Tensor]
    ) -> Tensor:
        """`[M, K]` tokens after prompts of one length: `choose` makes the k-th ones from logits `[M, V]`."""
        from transformers import DynamicCache

        cache = DynamicCache()
        embedded = self._embed(prompts_ML, pixels)
        drawn: list[Tensor] = []
        for position in range(count):
            found = self.language_model.model(inputs_embeds=embedded, cache=cache, use_cache=True)
            drawn.append(choose(self.logits(found.last_hidden_state[:, -1]), position))
            embedded = self.language_model.get_input_embeddings()(drawn[-1][:, None])
        return torch.stack(drawn, dim=1)

    def _embed(self, ids_ML: Tensor, pixels: Tensor) -> Tensor:
        """The first token, patches, the other tokens."""
        text = self.language_model.get_input_embeddings()(ids_ML)
        return torch.cat([text[:, :1], self.patches(pixels).to(text.dtype), text[:, 1:]], dim=1)


def gathered(states: Tensor, first_M: Tensor, count: int) -> Tensor:
    """`count` states of each row from its own first one on."""
    wanted = first_M[:, None] + torch.arange(count, device=first_M.device)
    return states.gather(1, wanted[..., None].expand(-1, -1, states.shape[-1]))


class Projector(nn.Module):
    """Features of both encoders to the language model's size."""

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, 4 * features)
        self.fc2 = nn.Linear(4 * features, size)
        self.fc3 = nn.Linear(size, size)

    def forward(self, features: Tensor) -> Tensor:
        """`[M, P, E]`."""
        found: Tensor = self.fc3(functional.gelu(self.fc2(functional.gelu(self.fc1(features)))))
        return found
