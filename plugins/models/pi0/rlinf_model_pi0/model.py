"""The `pi0` model: a flow of actions from pictures, an instruction and a state.

Axes: B rows, T positions, M decisions, N environments, K positions of a decision, C actions of a chunk, A
action dimensions, S state size, L prefix tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rlinf_core.api import ActionSample, Model, PolicyOutputs, Space, Want
from rlinf_core.errors import ModelError
from rlinf_model_pi0 import checkpoint, heads, lerobot, network
from rlinf_model_pi0.config import Pi0Config
from rlinf_model_pi0.flow import Flow
from rlinf_model_pi0.matching import Matching, is_matching
from rlinf_model_pi0.observations import Observations
from rlinf_model_pi0.rows import Grid, executed, joined, places
from rlinf_model_pi0.sampler import Chain, Judged, Sampler, Seen

if TYPE_CHECKING:
    from rlinf_core.api.capabilities import LogprobLevel
    from rlinf_core.types import Experience, Sampling, Trajectory


class Pi0(Model):
    """Log-probabilities are those of the noisy denoising steps that an action came by, given the noise that
    the flow started from; actions that were not executed, and padded dimensions, are left out."""

    config: Pi0Config

    def __init__(self, config: Pi0Config) -> None:
        super().__init__(config)
        if not config.path and not config.preset:
            raise ModelError("model pi0 needs model.path (a checkpoint's directory) or model.preset=tiny")
        self._observations: Observations | None = None
        self._valued = False
        self._level: LogprobLevel = "chunk"

    def bind(self, observation_space: Mapping[str, Space], action_space: Space) -> None:
        """Raises `ModelError` for spaces that do not fit the checkpoint, its statistics or the settings."""
        self._observations = Observations(
            self.config, self._architecture, observation_space, action_space, checkpoint.is_five(self.config)
        )

    def add_value_head(self) -> None:
        """Modules get a `value_head` from now on, which says 0 before it is trained."""
        self._valued = True

    def value_head(self, module: nn.Module) -> nn.Module | None:
        """The linear layer on the view of the observation, that `add_value_head` asked for."""
        return cast("nn.Module | None", getattr(heads.base_of(module), heads.VALUE, None))

    def set_logprob_level(self, level: LogprobLevel) -> None:
        """Of chunks, actions or action dimensions; each is a sum over denoising steps."""
        self._level = level

    def module(self, seed: int = 0) -> nn.Module:
        """The checkpoint's network, or the preset's drawn from `seed`."""
        module = checkpoint.network(self.config, seed)
        heads.attach(module, self.config, valued=self._valued)
        module.model.dit.embed_tokens.requires_grad_(False)  # a part of the layout that nothing reads
        if self.config.train == "expert":
            module.model.vlm.requires_grad_(False)
        return cast("nn.Module", module)

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """The decisions of all rows, without padding, and their places."""
        episodes = cast("Sequence[Trajectory]", rows)
        seen = self._bound.collate([row.observations for row in episodes])
        inputs = {**places(episodes, width, self._positions), **seen}
        inputs["executed"] = joined([executed(row) for row in episodes])
        chains = [row.latents for row in episodes if row.latents is not None]
        if len(chains) == len(episodes):
            inputs["latents"] = joined(chains)
        return inputs

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """All positions of a decision have its value: that of the observation, whatever was drawn."""
        _check_sampling(sampling)
        grid, sampler = Grid.of(inputs), self._sampler(module)
        seen = self._seen(module, inputs)
        if want & {"logprobs", "entropy"}:
            judged = self._judged(sampler, seen, inputs)
            hidden_ME = judged.hidden_ME
            logprobs_MK = self._at_level(judged.logprobs_MCA, inputs["executed"])
            entropy_MK = self._at_level(judged.entropy_MCA, inputs["executed"]) if "entropy" in want else None
        else:
            hidden_ME, entropy_MK = sampler.look(seen), None
            logprobs_MK = torch.zeros(len(hidden_ME), self._positions, device=hidden_ME.device)
        values_MK = None
        if "values" in want:
            values_MK = heads.values(module, hidden_ME)[:, None].expand(-1, self._positions)
        return PolicyOutputs(
            grid.spread(logprobs_MK),
            None if entropy_MK is None else grid.spread(entropy_MK),
            None if values_MK is None else grid.spread(values_MK),
        )

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """Layers of vision tower, language model and expert; not the language model's last one, of which only
        keys and values are used, so that no gradient of its output tells when it is to be gathered."""
        model = heads.base_of(module).model
        vision = list(model.vlm.vision_tower.encoder.layers)
        return [*vision, *model.vlm.language_model.layers[:-1], *model.dit.layers]

    @torch.no_grad()
    def act(
        self,
        module: nn.Module,
        observations: Mapping[str, Tensor],
        seeds: Sequence[int],
        greedy: bool = False,
    ) -> ActionSample:
        """Actions as drawn: a simulator's bounds are not applied here. Greedy draws no noise."""
        prepared = self._bound.collate_shown(observations)
        drawn = self._sampler(module).draw(self._seen(module, prepared), seeds, greedy)
        actions_NCA = self._bound.actions(drawn.actions_NCA)
        done_NC = torch.ones(actions_NCA.shape[:2], dtype=torch.bool, device=actions_NCA.device)
        latents = drawn.chain.packed()
        if self._level == "chunk":
            logprobs_NC = self._at_level(drawn.logprobs_NCA, done_NC, "action")
            return ActionSample(actions_NCA, logprobs_NC.sum(-1), logprobs_NC, latents=latents)
        each_NK = self._at_level(drawn.logprobs_NCA, done_NC)
        return ActionSample(actions_NCA, each_NK.sum(-1), logprobs_NK=each_NK, latents=latents)

    @property
    def chunk(self) -> int:
        """Actions of a decision."""
        return self._bound.chunk

    def label(self, actions: Tensor, seeds: Sequence[int]) -> ActionSample:
        """Noised to times that are drawn: their log-probabilities are minus the errors of the flow there."""
        steps = self.config.steps or self._architecture.num_inference_steps
        states = 2 if self.config.noisy_steps == "one" else steps + 1
        latents = Matching.drawn(self._bound.padded_units(actions), seeds).packed(states)
        blank = torch.zeros(len(actions), self._positions)
        if self._level == "chunk":
            each_NC = torch.zeros(actions.shape[:2])
            return ActionSample(actions, blank[:, 0], each_NC, latents=latents)
        return ActionSample(actions, blank[:, 0], logprobs_NK=blank, latents=latents)

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """A checkpoint with tokenizer and statistics, without the heads; in the layout of `path`."""
        checkpoint.save(self.config, state, path)
        self._bound.save(path)

    def convert_export(self, folder: Path, form: str) -> None:
        """To `lerobot`. Raises `ModelError` for another one, and for what LeRobot cannot build."""
        if form != lerobot.FORMAT:
            super().convert_export(folder, form)
        facts = self._bound.told(self.config.dtype)
        lerobot.refuse(self._architecture, facts, state_in_prompt=self.config.state_in_prompt)
        lerobot.convert(folder, self._architecture, facts)

    @cached_property
    def _architecture(self) -> Any:  # Any: a transformers configuration
        return checkpoint.architecture(self.config)

    @property
    def _bound(self) -> Observations:
        if self._observations is None:
            raise ModelError("model pi0 takes its sizes from a simulator; name one with --simulator")
        return self._observations

    @property
    def _positions(self) -> int:
        """Of a decision."""
        return {
            "chunk": 1,
            "action": self._bound.chunk,
            "token": self._bound.chunk * self._bound.dimensions,
        }[self._level]

    def _sampler(self, module: nn.Module) -> Sampler:
        wanted = self._architecture
        flow = Flow(self.config.steps or wanted.num_inference_steps, self.config.noise_level)
        return Sampler(module, self.config, flow, wanted.chunk_size, wanted.max_action_dim)

    def _seen(self, module: nn.Module, inputs: Mapping[str, Tensor]) -> Seen:
        """Read what `Observations` collated."""
        tokens_ML = inputs["tokens"]
        pictures = self._bound.pictures(inputs)
        before = network.prefix(heads.base_of(module), tokens_ML.clamp(min=0), tokens_ML >= 0, pictures)
        return Seen(before, self._bound.state(inputs))

    def _judged(self, sampler: Sampler, seen: Seen, inputs: Mapping[str, Tensor]) -> Judged:
        if "latents" not in inputs:
            raise ModelError(
                "pi0: log-probabilities are those of recorded denoising steps, and these rows have none: "
                "they were not drawn by this model, nor labelled by it"
            )
        latents, sizes = inputs["latents"], (self._architecture.chunk_size, self._architecture.max_action_dim)
        if is_matching(latents):
            return sampler.match(seen, Matching.unpacked(latents, *sizes))
        return sampler.judge(seen, Chain.unpacked(latents, *sizes))

    def _at_level(self, each_MCA: Tensor, done_MC: Tensor, level: LogprobLevel | None = None) -> Tensor:
        """`[M, K]` sums over what was executed of each position."""
        level = level or self._level
        each_MCA = each_MCA[:, : self._bound.chunk, : self._bound.dimensions] * done_MC[..., None]
        if level == "token":
            return each_MCA.flatten(1)
        each_MC = each_MCA.sum(-1)
        return each_MC if level == "action" else each_MC.sum(-1, keepdim=True)


def _check_sampling(sampling: Sampling | None) -> None:
    if sampling is not None and (sampling.temperature, sampling.top_p, sampling.top_k) != (1.0, 1.0, 0):
        raise ModelError(
            "model pi0 draws actions as its noise says (model.noise_level); leave sampling.temperature at 1, "
            "sampling.top_p at 1 and sampling.top_k at 0"
        )
