"""The rollout-engine interface for language models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf_core.api.backend import LoRAConfig, WeightBucket
    from rlinf_core.api.model import Model
    from rlinf_core.types import Request, Sample, Sampling


class RolloutEngine(ABC):
    """Generates responses on one rank. Constructed with its config, the model and the adapters."""

    version: int = -1  # weight version in use; -1 = none loaded

    def __init__(
        self, config: Any, model: Model, lora: LoRAConfig, device: str = "cpu", seed: int = 0
    ) -> None:
        self.config = config  # Any: each plugin has its own config dataclass
        self.model = model
        self.lora = lora
        self.device = device
        self.seed = seed

    @abstractmethod
    def generate(self, requests: Iterable[list[Request]], sampling: Sampling) -> Iterator[list[Sample]]:
        """Finished samples as they finish, while further requests are admitted. What a request
        yields depends on its seed, its prompt and the weights alone. An empty list among the requests says
        that there is none at the moment: go on with what there is, and ask again."""

    @abstractmethod
    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Install one weight version, completely, before the next token; returns the version."""

    def weight_dtype(self) -> str:
        """What the engine keeps floats as, such as "bfloat16", so that nothing larger is sent; "" = as the
        trainer does."""
        return ""

    def abort(self) -> list[Request]:
        """Interrupt what is being generated; may be called by another thread. `generate` then ends after what
        has finished. Returns the requests that were taken and not answered, with what was drawn (`begun`):
        here or in another engine they go on from there. Only for engines with `provides.abort`."""
        from rlinf_core.errors import ConfigError

        raise ConfigError(f"rollout {type(self).__name__} cannot interrupt what it generates")

    def memory_bytes(self) -> float:
        """What this rank holds on its device: weights of its own and the cache. 0 = unknown."""
        return 0.0

    def onload(self) -> None:
        """Bring weights and cache onto the device."""

    def offload(self) -> None:
        """Free the device."""

    def close(self) -> None:
        """End what the engine has started; called once."""
