"""OpenVLA (Kim et al. 2024): pictures and an instruction to actions, written as tokens.

Axes: B rows, M decisions, N environments, K tokens of a decision, V bins, T positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rlinf_core.api import ActionSample, PolicyOutputs, Space, Want
from rlinf_core.rl.logprobs import entropy
from rlinf_core.rl.noise import uniforms
from rlinf_model_openvla import decisions
from rlinf_model_openvla.config import OpenVLAConfig
from rlinf_model_openvla.draws import inverse_transform
from rlinf_model_openvla.network import OpenVLANetwork
from rlinf_model_openvla.preset import tiny_record, tiny_tokenizer
from rlinf_model_openvla.prismatic import PrismaticModel
from rlinf_model_openvla.spaces import camera_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from rlinf_core.types import Experience, Sampling, Trajectory


class OpenVLA(PrismaticModel[OpenVLANetwork]):
    """Action tokens are drawn one after another."""

    config: OpenVLAConfig

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__(config)
        self._camera = ""

    def bind(self, observation_space: Mapping[str, Space], action_space: Space) -> None:
        """Raises `ModelError` without the camera, or for actions of another kind or number."""
        self._camera = f"images/{camera_of(self.config.camera, observation_space)}"
        self.bind_actions(action_space)

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """Pictures, prompts and tokens of every decision; `width` positions."""
        episodes = cast("Sequence[Trajectory]", rows)
        width = max(len(row.mask) for row in episodes) if width is None else width
        return decisions.collate(episodes, width, self.positions, [self._camera], self.prompting)

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """Actions that were not executed count neither in log-probabilities nor in entropies. All positions
        of a decision have the value of the state that its first token is told from."""
        self.check_sampling(sampling)
        network, judged = self.network(module), bool(want & {"logprobs", "entropy"})
        tokens_MK = inputs["drawn"]
        before_MK = tokens_MK[:, :-1] if judged else tokens_MK[:, :0]
        pixels = self.pictures.pixels(inputs[self._camera], self.config.crop_area)
        states = network.hidden(pixels, inputs["prompts"], inputs["lengths"], before_MK)
        logprobs_MK, entropy_MK = torch.zeros(tokens_MK.shape, device=tokens_MK.device), None
        if judged:
            logits_MKV = network.logits(states)
            logprobs_MK = self.judged(logits_MKV, tokens_MK - network.tokens.first)
            if "entropy" in want:
                entropy_MK = entropy(logits_MKV / self.config.temperature)
        return PolicyOutputs(
            self.in_rows(logprobs_MK, inputs),
            None if entropy_MK is None else self.in_rows(entropy_MK, inputs),
            self.values_in_rows(states[:, 0], network, inputs) if "values" in want else None,
        )

    @torch.no_grad()
    def act(
        self,
        module: nn.Module,
        observations: Mapping[str, Tensor],
        seeds: Sequence[int],
        greedy: bool = False,
    ) -> ActionSample:
        """Tokens by inverse transform, and what they stand for in the simulator. Environments whose prompts
        have one length are computed together."""
        network, pictures = self.network(module), observations[self._camera]
        prompts = [self.prompting.encode(t) for t in self.prompting.texts(observations, len(seeds))]
        count = self.config.chunk * self.scales.size
        draws_NK = torch.from_numpy(uniforms(seeds, count)).to(pictures.device)
        tokens_NK = torch.zeros(len(seeds), count, dtype=torch.int64, device=pictures.device)
        logprobs_NK = torch.zeros(tokens_NK.shape, device=pictures.device)
        for members in _of_one_length(prompts):
            ids_ML = torch.tensor([prompts[n] for n in members], device=pictures.device)
            pixels = self.pictures.pixels(pictures[members], self.config.crop_area)
            found = self._draw(network, pixels, ids_ML, None if greedy else draws_NK[members], count)
            tokens_NK[members], logprobs_NK[members] = found
        return self.sample(tokens_NK, logprobs_NK)

    def new_network(self) -> OpenVLANetwork:
        """Of the architecture."""
        return OpenVLANetwork(self.architecture)

    def preset_parts(self) -> tuple[dict[str, Any], Tokenizer]:
        """Half a million parameters and bytes for tokens."""
        return tiny_record(), tiny_tokenizer()

    def drawn_for(self, values_NK: Tensor) -> Tensor:
        """The nearest tokens."""
        return self.architecture.tokens.ids(values_NK)

    def values_of(self, drawn_NK: Tensor) -> Tensor:
        """The middles of bins."""
        return self.architecture.tokens.values(drawn_NK)

    def _draw(
        self, network: OpenVLANetwork, pixels: Tensor, ids_ML: Tensor, draws_MK: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probabilities, `[M, K]`; the likeliest ones without draws."""
        logprobs: list[Tensor] = []

        def choose(logits_MV: Tensor, position: int) -> Tensor:
            if draws_MK is None:
                bins_M = logits_MV.argmax(-1)
            else:
                bins_M = inverse_transform(logits_MV / self.config.temperature, draws_MK[:, position])
            logprobs.append(self.judged(logits_MV, bins_M))
            return bins_M + network.tokens.first

        half = self.config.act_dtype == "bfloat16"
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=half):
            tokens_MK = network.generate(pixels, ids_ML, count, choose)
        return tokens_MK, torch.stack(logprobs, dim=1)


def _of_one_length(prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for index, ids in enumerate(prompts):
        members[len(ids)].append(index)
    return list(members.values())
