"""OpenVLA-OFT (Kim, Finn and Liang 2025): pictures, an instruction and a state to a chunk of actions in one
pass.

Axes: B rows, M decisions, N environments, K slots of a decision (C actions of A dimensions), S state size,
V bins, E hidden size, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rlinf_core.api import ActionSample, PolicyOutputs, Space, Want
from rlinf_core.errors import ModelError
from rlinf_core.rl.logprobs import entropy
from rlinf_core.rl.noise import uniforms
from rlinf_model_openvla import decisions
from rlinf_model_openvla.actions import SIMULATOR, Scales
from rlinf_model_openvla.draws import inverse_transform, laplace
from rlinf_model_openvla.oft import checkpoint
from rlinf_model_openvla.oft.config import OpenVLAOFTConfig
from rlinf_model_openvla.oft.heads import ActionHead, ProprioProjector
from rlinf_model_openvla.oft.initial import keep_variance
from rlinf_model_openvla.oft.network import OFTNetwork
from rlinf_model_openvla.oft.preset import sized_record, word_tokenizer
from rlinf_model_openvla.prismatic import PrismaticModel
from rlinf_model_openvla.spaces import cameras_of, state_size

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from rlinf_core.types import Experience, Sampling, Trajectory

STATE = "state"


class OpenVLAOFT(PrismaticModel[OFTNetwork]):
    """Slots know nothing of what is drawn in the others; tokens, or numbers with noise about them."""

    config: OpenVLAOFTConfig

    def __init__(self, config: OpenVLAOFTConfig) -> None:
        super().__init__(config)
        self._cameras: list[str] = []
        self._state: Scales | None = None

    def bind(self, observation_space: Mapping[str, Space], action_space: Space) -> None:
        """Raises `ModelError` without the cameras or the state, or for actions of another kind or number."""
        found = cameras_of(self.config.cameras, observation_space, self.config.plugin)
        self._cameras = [f"images/{camera}" for camera in found]
        self.bind_actions(action_space)
        if self._sees_state:
            self._state = self._state_scales(state_size(observation_space, self.config.plugin))

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """What every decision saw and drew; `width` positions."""
        episodes = cast("Sequence[Trajectory]", rows)
        width = max(len(row.mask) for row in episodes) if width is None else width
        return decisions.collate(episodes, width, self.positions, self._names, self.prompting)

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """Actions that were not executed count neither in log-probabilities nor in entropies. All positions
        of a decision have the value of the state that its first slot is told from."""
        self.check_sampling(sampling)
        network, drawn_MK = self.network(module), inputs["drawn"]
        states_MKE = self._slots(network, inputs, inputs["prompts"], inputs["lengths"])
        logprobs_MK, entropy_MK = torch.zeros(drawn_MK.shape, device=drawn_MK.device), None
        if want & {"logprobs", "entropy"}:
            logprobs_MK, entropy_MK = self._judge(network, states_MKE, drawn_MK, "entropy" in want)
        return PolicyOutputs(
            self.in_rows(logprobs_MK, inputs),
            None if entropy_MK is None else self.in_rows(entropy_MK, inputs),
            self.values_in_rows(states_MKE[:, 0], network, inputs) if "values" in want else None,
        )

    @torch.no_grad()
    def act(
        self,
        module: nn.Module,
        observations: Mapping[str, Tensor],
        seeds: Sequence[int],
        greedy: bool = False,
    ) -> ActionSample:
        """Draws of all slots at once, and what they stand for in the simulator."""
        network = self.network(module)
        device = observations[self._cameras[0]].device
        texts = self.prompting.texts(observations, len(seeds))
        ids_NL, lengths_N = decisions.padded([self.prompting.encode(text) for text in texts])
        draws_NK = None if greedy else torch.from_numpy(uniforms(seeds, self._slot_count)).to(device)
        half = self.config.act_dtype == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            states_NKE = self._slots(network, observations, ids_NL.to(device), lengths_N.to(device))
            drawn_NK, logprobs_NK = self._draw(network, states_NKE, draws_NK)
        return self.sample(drawn_NK, logprobs_NK)

    def new_network(self) -> OFTNetwork:
        """Without OFT's own parts."""
        return OFTNetwork(self.architecture, self.prompts.stop)

    def add_parts(self, network: OFTNetwork) -> None:
        """Those asked for, with the weights of the checkpoint's files, or new ones."""
        dtype, size = getattr(torch, self.config.dtype), network.hidden_size
        if self._continuous:
            network.action_head = ActionHead(size, self.scales.size).to(dtype)
            asked = f"{self.scales.size} dimensions of actions in chunks of any length"
            self._fill(network.action_head, checkpoint.ACTION_HEAD, asked)
        if self._sees_state:
            state = self._state_scales_bound
            network.proprio_projector = ProprioProjector(state.size, size).to(dtype)
            keep_variance(network.proprio_projector)
            asked = f"a state of {state.size} numbers, as the simulator shows it"
            self._fill(network.proprio_projector, checkpoint.PROPRIO, asked)

    def preset_parts(self) -> tuple[dict[str, Any], Tokenizer]:
        """In the sizes of the settings."""
        return sized_record(self.config.sizes), word_tokenizer()

    def preset_statistics(self) -> dict[str, Any]:  # Any: JSON values
        """Of the simulator that a preset was made for."""
        state = {} if self._state is None else {"proprio": self._state.statistics()}
        return {**super().preset_statistics(), **state}

    def drawn_for(self, values_NK: Tensor) -> Tensor:
        """The nearest tokens, or the numbers themselves."""
        return values_NK.float() if self._continuous else self.architecture.tokens.ids(values_NK)

    def values_of(self, drawn_NK: Tensor) -> Tensor:
        """The middles of bins, or the numbers themselves."""
        return drawn_NK.double() if self._continuous else self.architecture.tokens.values(drawn_NK)

    def save_weights(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """OFT's own parts into files of their own."""
        checkpoint.save_weights(state, path)

    def _slots(
        self, network: OFTNetwork, seen: Mapping[str, Tensor], prompts_ML: Tensor, lengths_M: Tensor
    ) -> Tensor:
        shown = [self.pictures.pixels(seen[name], self.config.crop_area) for name in self._cameras]
        pixels = shown[0] if len(shown) == 1 else torch.cat(shown, dim=1)
        state_MS = None
        if self._state is not None:
            state_MS = self._state.invert(seen[STATE].float()).clamp(-1.0, 1.0)
        count = self._slot_count
        return network.slots(pixels, prompts_ML, lengths_M, state_MS, count)

    def _judge(
        self, network: OFTNetwork, states_MKE: Tensor, drawn_MK: Tensor, spread: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and, if wanted, entropies, `[M, K]`."""
        if self._continuous:
            logprobs_MK = self._laplace_logprobs(drawn_MK - self._means(network, states_MKE))
            flat = 1.0 + math.log(2.0 * self.config.noise)
            return logprobs_MK, torch.full_like(logprobs_MK, flat) if spread else None
        logits_MKV = network.logits(states_MKE)
        logprobs_MK = self.judged(logits_MKV, drawn_MK - network.tokens.first)
        return logprobs_MK, entropy(logits_MKV / self.config.temperature) if spread else None

    def _draw(
        self, network: OFTNetwork, states_NKE: Tensor, draws_NK: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What is drawn and its log-probabilities, `[N, K]`; the likeliest without draws."""
        if self._continuous:
            means_NK = self._means(network, states_NKE)
            noise_NK = torch.zeros_like(means_NK)
            if draws_NK is not None:
                noise_NK = (self.config.noise * laplace(draws_NK)).float()
            drawn_NK = means_NK + noise_NK
            return drawn_NK, self._laplace_logprobs(drawn_NK - means_NK)
        logits_NKV = network.logits(states_NKE)
        if draws_NK is None:
            bins_NK = logits_NKV.argmax(-1)
        else:
            bins_NK = inverse_transform(logits_NKV / self.config.temperature, draws_NK)
        return bins_NK + network.tokens.first, self.judged(logits_NKV, bins_NK)

    def _means(self, network: OFTNetwork, states_MKE: Tensor) -> Tensor:
        """Float32 `[M, K]`: what the head says of each action from its slots side by side."""
        if network.action_head is None:
            raise ModelError("openvla_oft: the module was made without an action head; bind the model first")
        states_MCE = states_MKE.unflatten(1, (self.config.chunk, -1)).flatten(2)
        found: Tensor = network.action_head(states_MCE).flatten(1).float()
        return found

    def _laplace_logprobs(self, missed: Tensor) -> Tensor:
        return -missed.abs() / self.config.noise - math.log(2.0 * self.config.noise)

    def _fill(self, part: nn.Module, name: str, asked: str) -> None:
        file = checkpoint.part_file(self.folder, name) if self.config.path else None
        if file is not None:
            checkpoint.fill_part(part, file, asked)

    @cached_property
    def _continuous(self) -> bool:
        if self.config.head == "auto":
            return self._has_part(checkpoint.ACTION_HEAD)
        return self.config.head == "continuous"

    @cached_property
    def _sees_state(self) -> bool:
        if self.config.proprio == "auto":
            return self._has_part(checkpoint.PROPRIO)
        return self.config.proprio == "state"

    def _has_part(self, name: str) -> bool:
        return bool(self.config.path) and checkpoint.part_file(self.folder, name) is not None

    def _state_scales(self, size: int) -> Scales:
        if self.config.preset:
            bound = self.config.sizes.state_bound
            return Scales(SIMULATOR, (-bound,) * size, (bound,) * size, (True,) * size)
        scales = self.scales_of("proprio")
        if scales.size != size:
            raise ModelError(
                f"model.proprio (openvla_oft): statistics of {scales.key!r} are of states of {scales.size} "
                f"numbers, the simulator's has {size}"
            )
        return scales

    @property
    def _state_scales_bound(self) -> Scales:
        if self._state is None:
            raise ModelError("model openvla_oft sees a simulator's state; name one with --simulator")
        return self._state

    @property
    def _names(self) -> list[str]:
        """Of the observations that are seen."""
        return [*self._cameras, *([STATE] if self._state is not None else [])]

    @property
    def _slot_count(self) -> int:
        return self.config.chunk * self.scales.size
