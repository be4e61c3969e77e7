"""The simulator interface: vectorised environments.

Axes: N environments, C actions of a chunk, A action dimensions, S state dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass
class Observation:
    """What N environments show."""

    state: NDArray[np.float32] | None = None  # [N, S]
    images: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)  # camera -> [N, H, W, 3]
    instruction: list[str] | None = None  # N texts; models get them as `api.instructions` writes them


@dataclass
class Transition:
    """The outcome of one action chunk. Once an environment has ended inside a chunk, the rest of
    its chunk is not executed: `executed` is False there and rewards are 0.

    Recorded episodes end with their first success. A simulator that goes on after it says by
    `success_NC` which action it was, so that the rest of the chunk is not trained on.
    """

    observation: Observation  # after automatic reset where an episode ended
    rewards_NC: NDArray[np.float32]
    terminated_NC: NDArray[np.bool_]  # the task ended (success or failure): no bootstrap
    truncated_NC: NDArray[np.bool_]  # cut by a time limit: bootstrap from `final_observation`
    executed_NC: NDArray[np.bool_]
    success_N: NDArray[np.bool_]  # the episode that ended in this chunk, or is running, has succeeded
    final_observation: Observation | None = None  # before reset; rows of ended episodes are valid
    success_NC: NDArray[np.bool_] | None = None  # by action, of episodes that go on after a success
    lost_N: NDArray[np.bool_] | None = None  # episodes that ended with their process; the rest is void there

    @classmethod
    def empty(cls, num_envs: int, chunk: int) -> Transition:
        """Of environments that have executed nothing, to be filled in."""
        import numpy as np

        shape = (num_envs, chunk)
        return cls(
            Observation(),
            rewards_NC=np.zeros(shape, dtype=np.float32),
            terminated_NC=np.zeros(shape, dtype=bool),
            truncated_NC=np.zeros(shape, dtype=bool),
            executed_NC=np.zeros(shape, dtype=bool),
            success_N=np.zeros(num_envs, dtype=bool),
        )


@dataclass(frozen=True)
class Space:
    """A continuous box of `shape` between `low` and `high`, or `n` discrete actions."""

    shape: tuple[int, ...] = ()
    low: float = -1.0
    high: float = 1.0
    n: int | None = None  # set = discrete


class Simulator(ABC):
    """N environments. Constructed with its config, N and a seed."""

    action_space: Space
    observation_space: Mapping[str, Space]  # "state", "images/CAMERA"
    max_episode_steps: int
    restarts = False  # whether `restart` works, and `auto_reset` may be set to False
    concurrent = False  # whether what `send` begins goes on by itself, in other processes
    auto_reset = True  # False: an environment rests, executing nothing, until its episode is (re)started

    def __init__(self, config: Any, num_envs: int, seed: int) -> None:
        self.config = config  # Any: each plugin has its own config dataclass
        self.num_envs = num_envs
        self.seed = seed

    @abstractmethod
    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start a new episode in every environment; equal seeds give equal episodes."""

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> Transition:
        """Execute `[N, C, A]` float (or `[N, C]` int) actions, with automatic reset unless `auto_reset` is
        False: then `observation` and `final_observation` of an ended episode are the same."""

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        """Start a new episode in these environments, each by its own seed, and leave the others as they are;
        returns what all show (where `restarts`). May come before `reset`."""
        from rlinf_core.errors import PluginError

        raise PluginError(f"simulator {type(self).__name__} does not restart single environments")

    def begin(self, seeds: Mapping[int, int]) -> None:
        """Begin what `restart` does, or `reset` where all environments start together; at most once before
        `begun`."""
        self._to_begin = seeds

    def begun(self) -> Observation:
        """What all show after what was begun."""
        if self.restarts:
            return self.restart(self._to_begin)
        return self.reset([self._to_begin[n] for n in range(self.num_envs)])

    def send(self, actions: NDArray[Any]) -> None:
        """Begin what `step` does; at most once before `receive`."""
        self._sent = actions

    def receive(self) -> Transition:
        """The outcome of what was sent."""
        return self.step(self._sent)

    def ready(self) -> bool:
        """Whether `receive` or `begun` need not wait for others."""
        return True

    def waits_on(self) -> Sequence[int]:
        """File descriptors of which one becomes readable before `ready` or `absent` says something else."""
        return ()

    def absent(self) -> NDArray[np.bool_] | None:
        """`[N]` environments that cannot be started yet: their process is starting. None = all can."""
        return None

    def process_ids(self) -> list[int]:
        """Of the processes, other than this one, that the environments are in."""
        return []

    def tasks(self) -> list[str]:
        """Task names this simulator can be configured for."""
        return []

    def expert(self, speed_N: Sequence[float]) -> NDArray[np.float32]:
        """`[N, A]` what a scripted expert does now in each environment, at this share of its full speed
        (`provides.expert`). It follows from what the environment is in, and changes nothing."""
        from rlinf_core.errors import PluginError

        raise PluginError(f"simulator {type(self).__name__} has no expert")

    def render(self) -> NDArray[np.uint8]:
        """`[N, H, W, 3]` pictures of the environments, for people (`provides.render`)."""
        from rlinf_core.errors import PluginError

        raise PluginError(f"simulator {type(self).__name__} does not render")

    def render_some(self, envs: Sequence[int]) -> NDArray[np.uint8]:
        """`render` of these environments alone, in this order (`[K, H, W, 3]`)."""
        return self.render()[list(envs)]

    def save_state(self) -> bytes:
        """All that later steps depend on (`provides.save_state`). Raises `PluginError`."""
        from rlinf_core.errors import PluginError

        raise PluginError(f"simulator {type(self).__name__} does not save its state")

    def load_state(self, state: bytes) -> Observation:
        """Go on as the simulator of the same config and N did that `state` is of; returns what it showed.
        Raises `PluginError`."""
        from rlinf_core.errors import PluginError

        raise PluginError(f"simulator {type(self).__name__} does not load a state")

    def offload(self) -> None:
        """Free what episodes can do without, such as a renderer (`provides.offload`)."""

    def onload(self) -> None:
        """Take back what was freed, before the next reset or step."""

    def close(self) -> None:
        """Free what the simulator holds."""
