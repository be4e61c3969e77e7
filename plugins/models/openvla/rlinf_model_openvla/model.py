"""OpenVLA (Kim et al. 2024): pictures and an instruction to actions, written as tokens.

Axes: B rows, M decisions, N environments, K tokens of a decision, C actions of a chunk, A dimensions the
model writes, V bins, T positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rlinf_core.api import ActionSample, Model, PolicyOutputs, Space, Want
from rlinf_core.errors import ModelError
from rlinf_core.rl.logprobs import entropy, gather_logprobs
from rlinf_core.rl.noise import uniforms
from rlinf_model_openvla import checkpoint, decisions
from rlinf_model_openvla.actions import Scales, simulator_actions
from rlinf_model_openvla.architecture import Architecture
from rlinf_model_openvla.config import OpenVLAConfig
from rlinf_model_openvla.network import OpenVLANetwork
from rlinf_model_openvla.pictures import Pictures
from rlinf_model_openvla.preset import tiny_record, tiny_tokenizer
from rlinf_model_openvla.prompts import TOKENIZER, Prompts
from rlinf_model_openvla.spaces import camera_of, check_dimensions

if TYPE_CHECKING:
    from rlinf_core.api.capabilities import LogprobLevel
    from rlinf_core.types import Experience, Sampling, Trajectory


class OpenVLA(Model):
    """Action tokens are drawn one after another; the record of an episode holds them as `latents`."""

    config: OpenVLAConfig

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__(config)
        self._camera = ""
        self._scales: Scales | None = None
        self._valued = False
        self._level: LogprobLevel = "chunk"

    def bind(self, observation_space: Mapping[str, Space], action_space: Space) -> None:
        """Raises `ModelError` without the camera, or for actions of another kind or number."""
        self._camera = camera_of(self.config.camera, observation_space)
        if action_space.n is not None:
            raise ModelError("model openvla writes continuous actions; the simulator's are discrete")
        self._scales = self._find_scales(action_space)
        check_dimensions(self.config.action_dims, self._scales, action_space)

    def add_value_head(self) -> None:
        """Modules have a `value_head` from now on, which says 0 before it is trained."""
        self._valued = True

    def value_head(self, module: nn.Module) -> nn.Module | None:
        """The layers that `add_value_head` asked for."""
        return _network(module).value_head

    def set_logprob_level(self, level: LogprobLevel) -> None:
        """Of chunks, actions or tokens."""
        self._level = level

    def module(self, seed: int = 0) -> nn.Module:
        """The weights of `path`, or the preset's architecture drawn from `seed` alone."""
        dtype = getattr(torch, self.config.dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.config.path:
                with torch.device("meta"):
                    network = OpenVLANetwork(self._architecture)
                checkpoint.load_weights(network, self._folder, dtype)
            else:
                network = OpenVLANetwork(self._architecture)
                network.initialise()
                network.to(dtype)
            network.refill()
            if self._valued:
                network.add_value_head(self.config.value_units)
        return network

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """Pictures, prompts and tokens of every decision; `width` positions."""
        episodes = cast("Sequence[Trajectory]", rows)
        width = max(len(row.mask) for row in episodes) if width is None else width
        return decisions.collate(episodes, width, self._positions, self._camera, self._prompting)

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """Actions that were not executed count neither in log-probabilities nor in entropies. All positions
        of a decision have the value of the state that its first token is told from."""
        _check_sampling(sampling)
        network, judged = _network(module), bool(want & {"logprobs", "entropy"})
        tokens_MK = inputs["tokens"]
        before_MK = tokens_MK[:, :-1] if judged else tokens_MK[:, :0]
        pixels = self._pictures.pixels(inputs["pictures"], self.config.crop_area)
        states = network.hidden(pixels, inputs["prompts"], inputs["lengths"], before_MK)
        logprobs_MK, entropy_MK = torch.zeros(tokens_MK.shape, device=tokens_MK.device), None
        if judged:
            logits_MKV = network.logits(states)
            logprobs_MK = self._judged(logits_MKV, tokens_MK - network.tokens.first)
            if "entropy" in want:
                entropy_MK = entropy(logits_MKV / self.config.temperature)
        logprobs_BT = self._in_rows(logprobs_MK, inputs)
        values_BT = None
        if "values" in want:
            positions = self._positions
            values_BT = decisions.spread(_values(network, states[:, 0]).expand(-1, positions), inputs)
        return PolicyOutputs(
            logprobs_BT, None if entropy_MK is None else self._in_rows(entropy_MK, inputs), values_BT
        )

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """The transformer blocks of both encoders and the language model."""
        return _network(module).blocks()

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
        network, scales = _network(module), self._bound()
        pictures = observations[f"images/{self._camera}"]
        prompts = [self._prompting.encode(t) for t in self._prompting.texts(observations, len(seeds))]
        count = self.config.chunk * scales.size
        draws_NK = torch.from_numpy(uniforms(seeds, count)).to(pictures.device)
        tokens_NK = torch.zeros(len(seeds), count, dtype=torch.int64, device=pictures.device)
        logprobs_NK = torch.zeros(tokens_NK.shape, device=pictures.device)
        for members in _of_one_length(prompts):
            ids_ML = torch.tensor([prompts[n] for n in members], device=pictures.device)
            pixels = self._pictures.pixels(pictures[members], self.config.crop_area)
            found = self._draw(network, pixels, ids_ML, None if greedy else draws_NK[members], count)
            tokens_NK[members], logprobs_NK[members] = found
        return self._sample(tokens_NK, logprobs_NK)

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """A checkpoint in the layout of openvla-7b, without the value head. Raises `OSError`."""
        path.mkdir(parents=True, exist_ok=True)
        if self.config.path:
            checkpoint.copy_others(self._folder, path)
        else:
            self._prompts.tokenizer.save(str(path / TOKENIZER))
        statistics = self._statistics[0] if self.config.path or self._scales is None else {}
        if not statistics and self._scales is not None:
            statistics = self._scales.statistics()
        record = {**self._architecture.record, "norm_stats": statistics, "torch_dtype": self.config.dtype}
        checkpoint.write_json(path, checkpoint.CONFIG, record)
        checkpoint.write_json(path, checkpoint.STATISTICS, statistics)
        checkpoint.save_weights(state, path)

    @cached_property
    def _folder(self) -> Path:
        folder = Path(self.config.path).expanduser()
        if not folder.is_dir():
            raise ModelError(
                f"model.path (openvla): {folder} is no folder; give one in the layout of openvla-7b"
            )
        return folder

    @cached_property
    def _architecture(self) -> Architecture:
        if self.config.preset:
            return Architecture.of(tiny_record(), "the preset")
        record = checkpoint.read_json(self._folder, checkpoint.CONFIG)
        return Architecture.of(record, str(self._folder / checkpoint.CONFIG))

    @cached_property
    def _statistics(self) -> tuple[dict[str, Any], str]:
        return checkpoint.read_statistics(self._folder, self._architecture.record)

    @cached_property
    def _pictures(self) -> Pictures:
        stored = self.config.path and (self._folder / checkpoint.PREPROCESSOR).is_file()
        settings = checkpoint.read_json(self._folder, checkpoint.PREPROCESSOR) if stored else None
        return Pictures.of(self._architecture.image_size, settings)

    @cached_property
    def _prompts(self) -> Prompts:
        return Prompts.load(self._folder) if self.config.path else Prompts(tiny_tokenizer())

    @cached_property
    def _prompting(self) -> decisions.Prompting:
        return decisions.Prompting(self._prompts.ids, self.config.instruction)

    def _find_scales(self, action_space: Space) -> Scales:
        if self.config.preset:
            return Scales.of_space(action_space)
        return Scales.from_statistics(self._statistics[0], self.config.unnorm_key, self._statistics[1])

    def _bound(self) -> Scales:
        if self._scales is None:
            raise ModelError("model openvla acts in a simulator; name one with --simulator")
        return self._scales

    @property
    def _positions(self) -> int:
        """Of a decision."""
        chunk = self.config.chunk
        return {"chunk": 1, "action": chunk, "token": chunk * self._bound().size}[self._level]

    def _draw(
        self, network: OpenVLANetwork, pixels: Tensor, ids_ML: Tensor, draws_MK: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probabilities, `[M, K]`; the likeliest ones without draws."""
        logprobs: list[Tensor] = []

        def choose(logits_MV: Tensor, position: int) -> Tensor:
            if draws_MK is None:
                bins_M = logits_MV.argmax(-1)
            else:
                bins_M = _inverse_transform(logits_MV / self.config.temperature, draws_MK[:, position])
            logprobs.append(self._judged(logits_MV, bins_M))
            return bins_M + network.tokens.first

        half = self.config.act_dtype == "bfloat16"
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=half):
            tokens_MK = network.generate(pixels, ids_ML, count, choose)
        return tokens_MK, torch.stack(logprobs, dim=1)

    def _judged(self, logits_V: Tensor, bins: Tensor) -> Tensor:
        return gather_logprobs(logits_V, bins, self.config.temperature)

    def _sample(self, tokens_NK: Tensor, logprobs_NK: Tensor) -> ActionSample:
        actions = simulator_actions(tokens_NK, self._architecture.tokens, self._bound(), self.config)
        chunk, each_N = self.config.chunk, logprobs_NK.sum(-1)
        if self._level == "token":
            return ActionSample(actions, each_N, logprobs_NK=logprobs_NK, latents=tokens_NK)
        logprobs_NC = logprobs_NK.unflatten(1, (chunk, -1)).sum(-1)
        if self._level == "action":
            return ActionSample(actions, each_N, logprobs_NK=logprobs_NC, latents=tokens_NK)
        return ActionSample(actions, each_N, logprobs_NC, latents=tokens_NK)

    def _in_rows(self, each_MK: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """`[B, T]` of what was executed."""
        executed_MCA = inputs["executed"][..., None]
        each_MCA = each_MK.unflatten(1, (self.config.chunk, -1)) * executed_MCA
        return decisions.spread(each_MCA.flatten(1).unflatten(1, (self._positions, -1)).sum(-1), inputs)


def _network(module: nn.Module) -> OpenVLANetwork:
    """Below adapters."""
    base = getattr(module, "get_base_model", None)
    return cast("OpenVLANetwork", base() if callable(base) else module)


def _values(network: OpenVLANetwork, states_ME: Tensor) -> Tensor:
    """Float32 `[M, 1]`, also under autocast. The head is called, so that sharding gathers it."""
    if network.value_head is None:
        raise ModelError(
            "openvla: values were asked for, but the module has no value head: call add_value_head() before "
            "module()"
        )
    with torch.autocast(states_ME.device.type, enabled=False):
        found: Tensor = network.value_head(states_ME.float())
    return found


def _inverse_transform(logits_MV: Tensor, draws_M: Tensor) -> Tensor:
    cumulative_MV = torch.softmax(logits_MV.double(), dim=-1).cumsum(-1)
    wanted_M1 = draws_M[:, None] * cumulative_MV[:, -1:]
    chosen_M = torch.searchsorted(cumulative_MV, wanted_M1, right=True).squeeze(-1)
    return chosen_M.clamp(max=logits_MV.shape[-1] - 1)


def _of_one_length(prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    members: dict[int, list[int]] = defaultdict(list)
    for index, ids in enumerate(prompts):
        members[len(ids)].append(index)
    return list(members.values())


def _check_sampling(sampling: Sampling | None) -> None:
    if sampling is not None and (sampling.temperature, sampling.top_p, sampling.top_k) != (1.0, 1.0, 0):
        raise ModelError(
            "model openvla draws tokens at model.temperature; leave sampling.temperature at 1, "
            "sampling.top_p at 1 and sampling.top_k at 0"
        )
