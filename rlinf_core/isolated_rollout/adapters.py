"""Adapters (Hu et al. 2021) as folders, which is how engines read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.isolated_rollout.names import ADAPTED, is_adapter

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api.backend import LoRAConfig


class AdapterFolders:
    """Keeps what an update brings of adapters, and writes it as peft does."""

    def __init__(self, folder: str, lora: LoRAConfig) -> None:
        self.folder = Path(folder)
        self.lora = lora
        self.number = 0  # of those that were written
        self._kept: dict[str, Tensor] = {}

    def keep(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies of those that belong to adapters."""
        self._kept |= {name: tensor.clone() for name, tensor in tensors.items() if is_adapter(name)}

    def write(self) -> Path | None:
        """A new folder with what was kept; None if there was nothing."""
        from safetensors.torch import save_file

        if not self._kept:
            return None
        self.number += 1
        folder = self.folder / f"adapter-{self.number}"
        folder.mkdir()
        save_file(
            {ADAPTED + name: tensor for name, tensor in self._kept.items()},
            folder / "adapter_model.safetensors",
        )
        (folder / "adapter_config.json").write_text(json.dumps(self._settings()))
        self._kept.clear()
        return folder

    def _settings(self) -> dict[str, Any]:  # Any: plain values
        modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in self._kept})
        return {
            "peft_type": "LORA",
            "r": self.lora.rank,
            "lora_alpha": self.lora.alpha,
            "use_rslora": self.lora.variant == "rslora",
            "target_modules": modules,
            "bias": "none",
            "task_type": "CAUSAL_LM",
        }
