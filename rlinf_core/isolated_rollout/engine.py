"""What a rollout engine in an environment of its own implements there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf_core.api.backend import LoRAConfig

if TYPE_CHECKING:
    from rlinf_core.isolated_rollout.buckets import Bucket
    from rlinf_core.types import FinishReason, Sampling


@dataclass(frozen=True)
class Setup:
    """What an engine is told of the model and of its place."""

    folder: str  # the model's configuration and processor in its own format, without weights
    eos_ids: tuple[int, ...]
    pad_id: int
    context_length: int
    device: str = "cpu"
    seed: int = 0
    lora: LoRAConfig = field(default_factory=LoRAConfig)


@dataclass(frozen=True)
class Hello:
    """What an engine says of itself once it is there."""

    capacity: int  # responses that it generates at once
    dtype: str  # that weights are sent in, such as "float32"
    versions: dict[str, str]  # package -> version, for people


@dataclass(frozen=True)
class Job:
    """One response that is asked for. `token_ids` are the prompt, and what is there of the response."""

    number: int
    token_ids: list[int]
    seed: int  # of all that is drawn; any 63 bits
    most: int  # tokens to draw
    least: int = 0  # no end-of-sequence id before so many tokens


@dataclass(frozen=True)
class Progress:
    """Tokens that were drawn for a job since it was last reported."""

    number: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]  # of the behaviour policy, after the sampling transform
    finish: FinishReason | None = None  # None = it goes on


@dataclass(frozen=True)
class Installed:
    """A weight as it lies in the engine: made of the sent ones with these `names`, or of some of them.

    `digest` is the sum of `buckets.digest` over all that holds them. Where `copies` processes hold parts or
    all of it, it may be that of what was sent as many times, or a divisor of that.
    """

    names: tuple[str, ...]
    digest: int
    copies: int = 1


class IsolatedEngine(ABC):
    """One engine, called by one thread. Constructed with the plugin's config and a `Setup`.

    Anything may be raised; a subclass of `RlinfError` reaches the user as it is.
    """

    def __init__(self, config: Any, setup: Setup) -> None:  # Any: each plugin has its own config dataclass
        self.config = config
        self.setup = setup

    @abstractmethod
    def hello(self) -> Hello:
        """Asked once."""

    @abstractmethod
    def add(self, jobs: Sequence[Job], sampling: Sampling, *, stream: bool) -> None:
        """Begin these. With `stream`, `step` reports every token, not only ends. What a job yields depends on
        its seed, its tokens and the weights, as far as the library can do that."""

    @abstractmethod
    def step(self) -> list[Progress]:
        """Advance the jobs that run, by a token or a few. Called only while there are some."""

    @abstractmethod
    def abort(self, numbers: Sequence[int]) -> list[Progress]:
        """End these jobs, with what of them was not reported; jobs that have ended are passed over."""

    @abstractmethod
    def load(self, bucket: Bucket) -> None:
        """Install some weights. No job runs meanwhile."""

    @abstractmethod
    def finish_update(self) -> list[Installed]:
        """All weights of a version are there: forget what was computed with older ones. Returns what is
        installed, as far as it can be told; what it returns is compared with what was sent."""

    def sleep(self) -> None:
        """Free the device."""

    def wake(self) -> None:
        """Bring everything back onto the device."""

    def memory_bytes(self) -> float:
        """What it holds on its device. 0 = unknown."""
        return 0.0

    def close(self) -> None:
        """Called once, before the process ends in order."""
