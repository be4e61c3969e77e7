"""Adapters (Hu et al. 2021): vLLM reads every version of them from a folder, in place of the one before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.isolated_rollout.names import ADAPTED, is_adapter

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.isolated_rollout.engine import Setup


class Adapters:
    """The one that requests are answered with."""

    def __init__(self, engine: Any, setup: Setup) -> None:  # Any: vLLM's engine
        self.engine = engine
        self.setup = setup
        self.request: Any = None  # Any: a LoRARequest
        self._kept: dict[str, Tensor] = {}
        self._number = 0

    def keep(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies of those that belong to adapters."""
        self._kept |= {name: tensor.clone() for name, tensor in tensors.items() if is_adapter(name)}

    def install(self) -> None:
        """Write what was kept, have it loaded, and give up the one before."""
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        if not self._kept:
            return
        self._number += 1
        folder = Path(self.setup.folder) / f"adapter-{self._number}"
        folder.mkdir()
        save_file(
            {ADAPTED + name: tensor for name, tensor in self._kept.items()},
            folder / "adapter_model.safetensors",
        )
        (folder / "adapter_config.json").write_text(json.dumps(self._settings()))
        before, self.request = self.request, LoRARequest(f"policy-{self._number}", self._number, str(folder))
        if before is not None:
            self.engine.remove_lora(before.lora_int_id)
        self.engine.add_lora(self.request)
        shutil.rmtree(folder)
        self._kept.clear()

    def _settings(self) -> dict[str, Any]:
        """As peft writes them."""
        modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in self._kept})
        return {
            "peft_type": "LORA",
            "r": self.setup.lora.rank,
            "lora_alpha": self.setup.lora.alpha,
            "target_modules": modules,
            "bias": "none",
            "task_type": "CAUSAL_LM",
        }
