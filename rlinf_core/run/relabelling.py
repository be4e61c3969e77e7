"""Lets the policy of a run play while the expert says what it would have done (DAgger, Ross et al. 2011).

Axes: N environments, R environments whose episode runs, C actions of a chunk, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.roles.policy import Question
from rlinf_core.run.evaluating import restored
from rlinf_core.run.seeds import derive_seed

if TYPE_CHECKING:
    from rlinf_core.api import Simulator
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.roles.episodes import Seats
    from rlinf_core.run.checkpoint import Checkpoint

# `[R, C, A]` actions by what R environments show, and the seeds of their decisions
Act = Callable[[Mapping[str, NDArray[Any]], Sequence[int]], NDArray[np.float32]]


@dataclass(frozen=True)
class Relabelling:
    """Who plays what the expert labels."""

    act: Act
    expert_share: float = 0.0  # of decisions that the expert takes


class Player:
    """Plays one episode in every environment, all of which have just started.

    A decision is the policy's chunk of actions, or as many of the expert's, each as the expert says it then.
    """

    def __init__(self, wanted: Relabelling, simulator: Simulator, seeds: Sequence[int]) -> None:
        self._wanted = wanted
        self._space = simulator.action_space
        self._random = [np.random.default_rng(derive_seed(seed, "expert-share")) for seed in seeds]
        self._expert_N = np.zeros(len(seeds), dtype=bool)
        self._chunk_NCA = np.zeros((len(seeds), 0, 0), dtype=np.float32)
        self._played = 0  # actions of the chunk

    def executed(
        self, expert_NA: NDArray[np.float32], shown: Mapping[str, NDArray[Any]], seats: Seats
    ) -> NDArray[np.float32]:
        """`[N, A]` actions to execute, where the expert would do `expert_NA` and running episodes show
        `shown`."""
        if self._played == self._chunk_NCA.shape[1]:
            self._decide(shown, seats)
        actions_NA = np.where(self._expert_N[:, None], expert_NA, self._chunk_NCA[:, self._played])
        self._played += 1
        return actions_NA

    def _decide(self, shown: Mapping[str, NDArray[Any]], seats: Seats) -> None:
        actions_RCA = self._wanted.act(shown, seats.seeds())
        self._chunk_NCA = np.zeros((len(self._random), *actions_RCA.shape[1:]), dtype=np.float32)
        self._chunk_NCA[seats.running_N] = actions_RCA.clip(self._space.low, self._space.high)
        self._expert_N = np.array([each.random() < self._wanted.expert_share for each in self._random])
        self._played = 0


@contextmanager
def acting(config: RunConfig, checkpoint: Checkpoint) -> Iterator[Act]:
    """The policy of a checkpoint, which acts as in evaluations of its run; its processes end with the block.
    Raises `CheckpointError` or `ConfigError`."""
    train, pool = replace(config.train, num_envs=1), replace(config.env_pool, processes=0)
    with restored(replace(config, train=train, env_pool=pool), checkpoint) as graph:
        graph.flow.sync()
        rollout, greedy = graph.crew.groups["rollout"], config.eval.temperature == 0

        def act(shown: Mapping[str, NDArray[Any]], seeds: Sequence[int]) -> NDArray[np.float32]:
            question = Question((0, 0), shown, seeds, greedy)
            actions: NDArray[np.float32] = (
                rollout.call_rank(0, "answer", question).result().sample.actions.numpy()
            )
            return actions

        yield act
