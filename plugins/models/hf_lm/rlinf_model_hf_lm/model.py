"""The `hf_lm` model: module, text processor, log-probabilities, decoding and export."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf_core.api import Decoder, Model, PolicyOutputs, TextProcessor, TokenRows, Want
from rlinf_core.errors import ModelError
from rlinf_core.types import Experience, Sampling
from rlinf_model_hf_lm import outputs, packing, sources, value
from rlinf_model_hf_lm.architecture import causal_lm
from rlinf_model_hf_lm.characters import CharProcessor
from rlinf_model_hf_lm.config import PRESETS, HFLMConfig
from rlinf_model_hf_lm.packed import can_pack
from rlinf_model_hf_lm.presets import preset_config, preset_processor
from rlinf_model_hf_lm.processor import HFProcessor


class HFLM(Model):
    """A causal language model of transformers, from a path or a preset."""

    config: HFLMConfig

    def __init__(self, config: HFLMConfig) -> None:
        super().__init__(config)
        if not config.path and not config.preset:
            raise ModelError(
                f"model hf_lm needs model.path (a directory, hub id or GGUF file) or model.preset, one of "
                f"{', '.join(PRESETS)}"
            )
        self._with_values = False
        self._packs = False  # known of the first module
        self._even = math.inf  # tokens of a row whose attention costs as much as all else

    def add_value_head(self) -> None:
        """Modules get a `value_head` from now on, which says 0 before it is trained."""
        self._with_values = True

    def value_head(self, module: nn.Module) -> nn.Module | None:
        """The linear layer that `add_value_head` asked for."""
        return value.value_head(module)

    def module(self, seed: int = 0) -> nn.Module:
        """The weights of `path`, or the preset's architecture initialised from `seed` alone."""
        module = self._trunk(seed)
        self._packs = packing.prepare(module, self.config.packing)
        self._even = packing.even_tokens(module)
        if self._with_values:
            value.attach(module)
        return module

    def processor(self) -> TextProcessor:
        """The text processor; made once."""
        return self._processor

    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """Prompt and response ids, right-padded, with their lengths."""
        return outputs.collate(rows, width, self._processor.pad_id)

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """Log-probabilities, entropies and values of the response tokens, aligned to the response."""
        eos_ids = self._processor.eos_ids
        return outputs.policy_outputs(module, inputs, want, sampling or Sampling(), eos_ids, self._packs)

    def token_rows(self, inputs: Mapping[str, Tensor]) -> TokenRows:
        """Prompt and response ids with their lengths."""
        return TokenRows(
            inputs["input_ids"], inputs["prompt_lengths"], inputs["response_lengths"], int(inputs["width"])
        )

    @property
    def padding_free(self) -> bool:
        """True where the architecture is known to take packed rows."""
        return self._packs

    def row_cost(self, tokens: int) -> float:
        """All but attention grows with the tokens, attention with their square."""
        return tokens * (1.0 + tokens / self._even)

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """The decoder layers."""
        names = set(getattr(causal_lm(module), "_no_split_modules", None) or ())
        return [part for part in module.modules() if type(part).__name__ in names]

    def decoder(self, module: nn.Module, slots: int, max_length: int) -> Decoder:
        """The fused decoder for the Llama family, and the generic one for all else."""
        from rlinf_model_hf_lm.fused_decoder import FusedDecoder
        from rlinf_model_hf_lm.generic_decoder import GenericDecoder

        if not can_pack(module):
            return GenericDecoder(module)
        decode_dtype = self.config.decode_dtype
        own = next(module.parameters()).dtype
        return FusedDecoder(module, own if decode_dtype == "auto" else getattr(torch, decode_dtype))

    def export_architecture(self, path: Path) -> None:
        """Write the configuration and the tokenizer, as `export` does beside the weights."""
        preset = self.config.preset
        found = preset_config(preset) if preset else sources.load_configuration(self._source, self.config)
        sources.save_configuration(found, self.config.dtype, path)
        self._processor.save(path)

    def exported_name(self, name: str) -> str | None:
        """That of the module; the value head is not exported."""
        return None if value.is_head(name) else name

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """Write a directory that `AutoModelForCausalLM` and `AutoTokenizer` load, without the value head.
        Raises `OSError`."""
        module: Any = self._trunk(0)  # Any: transformers modules are not typed
        tensors = {name: tensor.detach().cpu() for name, tensor in state if not value.is_head(name)}
        missing, unexpected = module.load_state_dict(tensors, strict=False)
        known = set(getattr(module, "_tied_weights_keys", None) or ())
        if unexpected or set(missing) - known:
            raise ModelError(
                f"hf_lm: exported weights do not fit the model: unexpected {sorted(unexpected)[:4]}, "
                f"missing {sorted(set(missing) - known)[:4]}"
            )
        path.mkdir(parents=True, exist_ok=True)
        sources.save_module(module, path)
        self._processor.save(path)

    def _trunk(self, seed: int) -> nn.Module:
        if self.config.path:
            return sources.load_module(self._source, self.config)
        from transformers import AutoModelForCausalLM

        options = {"attn_implementation": self.config.attn_implementation or "sdpa"}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module: nn.Module = AutoModelForCausalLM.from_config(preset_config(self.config.preset), **options)
        return module.to(getattr(torch, self.config.dtype))

    @cached_property
    def _source(self) -> sources.Source:
        return sources.find(self.config.path)

    @cached_property
    def _processor(self) -> CharProcessor | HFProcessor:
        if self.config.preset:
            return preset_processor(self.config.preset)
        return sources.load_processor(self._source, self.config)
