"""What both models share: checkpoints, scales, prompts, positions and the value head.

Axes: M decisions, N environments, K tokens of a decision, C actions of a chunk, A dimensions the model
writes, E hidden size, T positions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from rlinf_core.api import ActionSample, Model, Space
from rlinf_core.errors import ModelError
from rlinf_core.rl.logprobs import gather_logprobs
from rlinf_model_openvla import checkpoint, decisions
from rlinf_model_openvla.actions import Scales, model_values, simulator_actions
from rlinf_model_openvla.architecture import Architecture
from rlinf_model_openvla.config import PrismaticConfig
from rlinf_model_openvla.network import PrismaticNetwork
from rlinf_model_openvla.pictures import Pictures
from rlinf_model_openvla.prompts import TOKENIZER, Prompts
from rlinf_model_openvla.spaces import check_dimensions

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from rlinf_core.api.capabilities import LogprobLevel
    from rlinf_core.types import Sampling

NetworkT = TypeVar("NetworkT", bound=PrismaticNetwork)


class PrismaticModel(Model, Generic[NetworkT]):
    """Encoders, projector and Llama; the record of an episode holds what was drawn as `latents`."""

    config: PrismaticConfig

    def __init__(self, config: PrismaticConfig) -> None:
        super().__init__(config)
        self._scales: Scales | None = None
        self._valued = False
        self._level: LogprobLevel = "chunk"

    def bind_actions(self, action_space: Space) -> None:
        """Raises `ModelError` for actions of another kind or number."""
        if action_space.n is not None:
            raise ModelError(
                f"model {self.config.plugin} writes continuous actions; the simulator's are discrete"
            )
        self._scales = self._find_scales(action_space)
        check_dimensions(self.config.action_dims, self._scales, action_space, self.config.plugin)

    def add_value_head(self) -> None:
        """Modules have a `value_head` from now on, which says 0 before it is trained."""
        self._valued = True

    def value_head(self, module: nn.Module) -> nn.Module | None:
        """The layers that `add_value_head` asked for."""
        return self.network(module).value_head

    def set_logprob_level(self, level: LogprobLevel) -> None:
        """Of chunks, actions or tokens."""
        self._level = level

    @property
    def chunk(self) -> int:
        """As set."""
        return self.config.chunk

    def module(self, seed: int = 0) -> nn.Module:
        """The weights of `path`, or the preset's architecture drawn from `seed` alone."""
        dtype = getattr(torch, self.config.dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.config.path:
                with torch.device("meta"):
                    network = self.new_network()
                self.load_weights(network, dtype)
            else:
                network = self.new_network()
                network.initialise()
            self.add_parts(network)
            if not self.config.path:
                network.to(dtype)
            network.refill()
            if self._valued:
                network.add_value_head(self.config.value_units)
        return network

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """The transformer blocks of both encoders and the language model."""
        return self.network(module).blocks()

    def label(self, actions: Tensor, seeds: Sequence[int]) -> ActionSample:
        """What the model would have drawn to do these actions, as nearly as it can."""
        drawn_NK = self.drawn_for(model_values(actions, self.scales, self.config))
        return self.sample(drawn_NK, torch.zeros(drawn_NK.shape))

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """A checkpoint in the layout of openvla-7b, without the value head. Raises `OSError`."""
        path.mkdir(parents=True, exist_ok=True)
        if self.config.path:
            checkpoint.copy_others(self.folder, path)
        else:
            self.prompts.tokenizer.save(str(path / TOKENIZER))
        statistics = self.exported_statistics()
        record = {**self.architecture.record, "norm_stats": statistics, "torch_dtype": self.config.dtype}
        checkpoint.write_json(path, checkpoint.CONFIG, record)
        checkpoint.write_json(path, checkpoint.STATISTICS, statistics)
        self.save_weights(state, path)

    @abstractmethod
    def new_network(self) -> NetworkT:
        """Of the architecture."""

    @abstractmethod
    def preset_parts(self) -> tuple[dict[str, Any], Tokenizer]:
        """What `config.json` would say of the preset (JSON values), and its tokenizer."""

    @abstractmethod
    def drawn_for(self, values_NK: Tensor) -> Tensor:
        """What is drawn, for values from -1 to 1."""

    @abstractmethod
    def values_of(self, drawn_NK: Tensor) -> Tensor:
        """From -1 to 1, for what was drawn."""

    def load_weights(self, network: NetworkT, dtype: torch.dtype) -> None:
        """From the folder."""
        checkpoint.load_weights(network, self.folder, dtype, self.config.plugin)

    def add_parts(self, network: NetworkT) -> None:
        """What the network has beside OpenVLA's parts."""

    def save_weights(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """Into a folder."""
        checkpoint.save_weights(state, path)

    def exported_statistics(self) -> dict[str, Any]:  # Any: JSON values
        """Of data sets; of a preset, those that its simulator stands for."""
        found = self._statistics[0] if self.config.path or self._scales is None else {}
        return found or ({} if self._scales is None else {self._scales.key: self.preset_statistics()})

    def preset_statistics(self) -> dict[str, Any]:  # Any: JSON values
        """Of the simulator that a preset was made for."""
        return {"action": self.scales.statistics()}

    def network(self, module: nn.Module) -> NetworkT:
        """Below adapters."""
        base = getattr(module, "get_base_model", None)
        return cast("NetworkT", base() if callable(base) else module)

    def sample(self, drawn_NK: Tensor, logprobs_NK: Tensor) -> ActionSample:
        """In the simulator's terms, with log-probabilities at the level that was set."""
        actions = simulator_actions(self.values_of(drawn_NK), self.scales, self.config)
        each_N = logprobs_NK.sum(-1)
        if self._level == "token":
            return ActionSample(actions, each_N, logprobs_NK=logprobs_NK, latents=drawn_NK)
        logprobs_NC = logprobs_NK.unflatten(1, (self.config.chunk, -1)).sum(-1)
        if self._level == "action":
            return ActionSample(actions, each_N, logprobs_NK=logprobs_NC, latents=drawn_NK)
        return ActionSample(actions, each_N, logprobs_NC, latents=drawn_NK)

    def in_rows(self, each_MK: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """`[B, T]` of what was executed."""
        executed_MCA = inputs["executed"][..., None]
        each_MCA = each_MK.unflatten(1, (self.config.chunk, -1)) * executed_MCA
        return decisions.spread(each_MCA.flatten(1).unflatten(1, (self.positions, -1)).sum(-1), inputs)

    def values_in_rows(self, states_ME: Tensor, network: NetworkT, inputs: Mapping[str, Tensor]) -> Tensor:
        """`[B, T]`, computed in float32 also under autocast. The head is called, so that sharding gathers
        it."""
        if network.value_head is None:
            raise ModelError(
                f"{self.config.plugin}: values were asked for, but the module has no value head: call "
                "add_value_head() before module()"
            )
        if self.config.detach_critic_input:
            states_ME = states_ME.detach()
        with torch.autocast(states_ME.device.type, enabled=False):
            values_M1 = network.value_head(states_ME.float())
        return decisions.spread(values_M1.expand(-1, self.positions), inputs)

    def judged(self, logits_V: Tensor, bins: Tensor) -> Tensor:
        """Log-probabilities at the set temperature."""
        return gather_logprobs(logits_V, bins, self.config.temperature)

    def check_sampling(self, sampling: Sampling | None) -> None:
        """Raises `ModelError` for settings that acting does not follow."""
        if sampling is not None and (sampling.temperature, sampling.top_p, sampling.top_k) != (1.0, 1.0, 0):
            raise ModelError(
                f"model {self.config.plugin} draws tokens at model.temperature; leave sampling.temperature "
                "at 1, sampling.top_p at 1 and sampling.top_k at 0"
            )

    @property
    def scales(self) -> Scales:
        """Of actions. Raises `ModelError` before `bind`."""
        if self._scales is None:
            raise ModelError(f"model {self.config.plugin} acts in a simulator; name one with --simulator")
        return self._scales

    @property
    def positions(self) -> int:
        """Of a decision."""
        chunk = self.config.chunk
        return {"chunk": 1, "action": chunk, "token": chunk * self.scales.size}[self._level]

    @cached_property
    def folder(self) -> Path:
        """Of the checkpoint."""
        found = Path(self.config.path).expanduser()
        if not found.is_dir():
            raise ModelError(
                f"model.path ({self.config.plugin}): {found} is no folder; give one in the layout of "
                "openvla-7b"
            )
        return found

    @cached_property
    def architecture(self) -> Architecture:
        """Of the checkpoint, or the preset."""
        if self.config.preset:
            return Architecture.of(self._preset_parts[0], "the preset")
        record = checkpoint.read_json(self.folder, checkpoint.CONFIG, self.config.plugin)
        return Architecture.of(
            record, f"model.path ({self.config.plugin}): {self.folder / checkpoint.CONFIG}"
        )

    @cached_property
    def pictures(self) -> Pictures:
        """How pictures are prepared."""
        stored = self.config.path and (self.folder / checkpoint.PREPROCESSOR).is_file()
        settings = None
        if stored:
            settings = checkpoint.read_json(self.folder, checkpoint.PREPROCESSOR, self.config.plugin)
        return Pictures.of(self.architecture.image_size, settings)

    @cached_property
    def prompts(self) -> Prompts:
        """Of the checkpoint's tokenizer, or the preset's."""
        if self.config.path:
            return Prompts.load(self.folder, self.config.plugin)
        return Prompts(self._preset_parts[1])

    @cached_property
    def prompting(self) -> decisions.Prompting:
        """Of what simulators show."""
        return decisions.Prompting(self.prompts.ids, self.config.instruction, self.config.plugin)

    @cached_property
    def _preset_parts(self) -> tuple[dict[str, Any], Tokenizer]:
        return self.preset_parts()

    @cached_property
    def _statistics(self) -> tuple[dict[str, Any], str]:
        return checkpoint.read_statistics(self.folder, self.architecture.record, self.config.plugin)

    def _find_scales(self, action_space: Space) -> Scales:
        if self.config.preset:
            return Scales.of_space(action_space, self.config.plugin)
        return self.scales_of("action")

    def scales_of(self, what: str) -> Scales:
        """From the checkpoint's statistics."""
        statistics, where = self._statistics
        return Scales.from_statistics(statistics, self.config.unnorm_key, where, self.config.plugin, of=what)
