"""The `hf_vlm` model: module, processor, log-probabilities, decoding and export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlinf_core.api import Decoder, Model, PolicyOutputs, TextProcessor, Want
from rlinf_core.errors import ModelError
from rlinf_core.types import Experience, Sampling
from rlinf_model_hf_vlm import architecture, outputs, rows, sources, value
from rlinf_model_hf_vlm.config import PRESETS, HFVLMConfig
from rlinf_model_hf_vlm.presets import EOS, preset_config, preset_processor
from rlinf_model_hf_vlm.processor import VisionProcessor


class HFVLM(Model):
    """A vision-language model of transformers, from a path or a preset."""

    config: HFVLMConfig

    def __init__(self, config: HFVLMConfig) -> None:
        super().__init__(config)
        if not config.path and not config.preset:
            raise ModelError(
                f"model hf_vlm needs model.path (a directory or hub id) or model.preset, one of "
                f"{', '.join(PRESETS)}"
            )
        if config.path:
            sources.check(config.path)
        self._with_values = False

    def add_value_head(self) -> None:
        """Modules get a `value_head` from now on, which says 0 before it is trained."""
        self._with_values = True

    def value_head(self, module: nn.Module) -> nn.Module | None:
        """The linear layer that `add_value_head` asked for."""
        return value.value_head(module)

    def module(self, seed: int = 0) -> nn.Module:
        """The weights of `path`, or the preset's architecture initialised from `seed` alone."""
        module = self._trunk(seed)
        if self.config.freeze_vision:
            module.requires_grad_(False)
            architecture.language(module).requires_grad_(True)
            architecture.conditional(module).lm_head.requires_grad_(True)
        if self._with_values:
            value.attach(module)
        return module

    def processor(self) -> TextProcessor:
        """The text processor; made once."""
        return self._processor

    def collate(self, rows_: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """Distinct prompts with their images, and responses."""
        return rows.collate(rows_, width, self._processor)

    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """Log-probabilities, entropies and values of the response tokens, aligned to the response."""
        return outputs.policy_outputs(module, inputs, want, sampling or Sampling(), self._processor.eos_ids)

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """The layers of the vision encoder and of the language model."""
        return architecture.blocks(module)

    def adaptable(self, module: nn.Module) -> list[nn.Module]:
        """The language model, or all of it."""
        return [module if self.config.adapters == "all" else architecture.language(module)]

    def decoder(self, module: nn.Module, slots: int, max_length: int) -> Decoder:
        """Decodes by the model's own layers and cache."""
        from rlinf_model_hf_vlm.decoder import VisionDecoder

        return VisionDecoder(module, self._processor)

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """Write a directory that `AutoModelForImageTextToText` loads, without the value head, with the
        processor's files. Raises `OSError`."""
        module: Any = self._trunk(0)  # Any: transformers modules are not typed
        tensors = {name: tensor.detach().cpu() for name, tensor in state if not value.is_head(name)}
        missing, unexpected = module.load_state_dict(tensors, strict=False)
        known = set(getattr(module, "_tied_weights_keys", None) or ())
        if unexpected or set(missing) - known:
            raise ModelError(
                f"hf_vlm: exported weights do not fit the model: unexpected {sorted(unexpected)[:4]}, "
                f"missing {sorted(set(missing) - known)[:4]}"
            )
        path.mkdir(parents=True, exist_ok=True)
        sources.save(module, self._processor, self.config.path, path)

    def _trunk(self, seed: int) -> nn.Module:
        if self.config.path:
            module = sources.load_module(self.config)
        else:
            from transformers import AutoModelForImageTextToText

            options = {"attn_implementation": self.config.attn_implementation or "sdpa"}
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                config = preset_config(self.config.preset)
                module = AutoModelForImageTextToText.from_config(config, **options)
            module = module.to(getattr(torch, self.config.dtype))
        architecture.check(module)
        return module

    @cached_property
    def _processor(self) -> VisionProcessor:
        if self.config.preset:
            made, config = preset_processor(self.config.preset), preset_config(self.config.preset)
            return VisionProcessor(made, config, self.config, {EOS})
        return sources.load_processor(self.config)
