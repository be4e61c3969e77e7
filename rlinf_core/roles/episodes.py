"""Records a wave of episodes that started together, each until its own end.

Axes: T decision steps, N environments, E episodes asked for (the first E of N), C actions of a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.types import EpisodeRequest, Trajectory

if TYPE_CHECKING:
    from rlinf_core.api import ActionSample, Transition


class Wave:
    """An episode ends with termination, a time limit or its first success, whichever is first; what
    its environment does afterwards is not recorded."""

    def __init__(self, requests: Sequence[EpisodeRequest], max_episode_steps: int) -> None:
        count = len(requests)
        self.requests = requests
        self.limit = max_episode_steps
        self.lengths_E = np.zeros(count, dtype=np.int64)
        self.executed_E = np.zeros(count, dtype=np.int64)  # actions
        self.success_E = np.zeros(count, dtype=bool)
        self.truncated_E = np.zeros(count, dtype=bool)
        self._running_E = np.ones(count, dtype=bool)
        self._steps: list[dict[str, NDArray[Any]]] = []

    @property
    def ended(self) -> bool:
        """Whether every episode has."""
        return not bool(self._running_E.any())

    @property
    def actions(self) -> int:
        """Actions executed in all recorded episodes."""
        return int(self.executed_E.sum())

    def add(self, shown: dict[str, NDArray[Any]], sample: ActionSample, transition: Transition) -> None:
        """Record one decision of every environment, and what came of it."""
        count = len(self.requests)
        executed_EC = np.array(transition.executed_NC[:count])
        self._steps.append(
            {
                "actions": sample.actions.numpy()[:count],
                "logprobs": executed_logprobs(sample, transition.executed_NC)[:count],
                "executed": executed_EC,
                "rewards": np.where(executed_EC, transition.rewards_NC[:count], 0.0).sum(1, dtype=np.float32),
                **_values(sample, count),
                **{f"shown/{name}": array[:count] for name, array in shown.items()},
            }
        )
        self.lengths_E += self._running_E
        self.executed_E += executed_EC.sum(1) * self._running_E
        self._close(transition)

    def trajectories(self, version: int) -> list[Trajectory]:
        """The recorded episodes, in the order of their requests."""
        columns = {name: np.stack([step[name] for step in self._steps]) for name in self._steps[0]}
        return [self._trajectory(i, columns, version) for i in range(len(self.requests))]

    def _close(self, transition: Transition) -> None:
        count = len(self.requests)
        success_E = transition.success_N[:count]
        terminated_E = transition.terminated_NC[:count].any(1)
        late_E = transition.truncated_NC[:count].any(1) | (self.executed_E >= self.limit)
        late_E = late_E & ~terminated_E & ~success_E
        self.success_E |= self._running_E & success_E
        self.truncated_E |= self._running_E & late_E
        self._running_E &= ~(success_E | terminated_E | late_E)

    def _trajectory(self, i: int, columns: dict[str, NDArray[Any]], version: int) -> Trajectory:
        def cut(name: str) -> NDArray[Any]:
            return np.ascontiguousarray(columns[name][: self.lengths_E[i], i])

        request, executed_TC, rewards_T = self.requests[i], cut("executed"), cut("rewards")
        actions = cut("actions")
        return Trajectory(
            group=request.group,
            replica=request.replica,
            seed=request.seed,
            mask=np.asarray(executed_TC.any(1)),
            logprobs=cut("logprobs"),
            weight_version=version,
            finish="length" if self.truncated_E[i] else "stop",
            reward=float(rewards_T.sum()),
            step_rewards=rewards_T,
            values=cut("values") if "values" in columns else None,
            observations={
                name.removeprefix("shown/"): cut(name) for name in columns if name.startswith("shown/")
            },
            actions=actions,
            executed=executed_TC if actions.ndim > 1 else None,
            success=bool(self.success_E[i]),
            truncated=bool(self.truncated_E[i]),
        )


def _values(sample: ActionSample, count: int) -> dict[str, NDArray[np.float32]]:
    return {} if sample.values_N is None else {"values": sample.values_N.float().cpu().numpy()[:count]}


def executed_logprobs(sample: ActionSample, executed_NC: NDArray[np.bool_]) -> NDArray[np.float32]:
    """`[N]` log-probabilities of what was executed of each chunk."""
    if sample.logprobs_NC is None:
        whole: NDArray[np.float32] = sample.logprobs_N.float().cpu().numpy()
        return whole
    each_NC: NDArray[np.float32] = sample.logprobs_NC.float().cpu().numpy()
    summed: NDArray[np.float32] = (each_NC * executed_NC).sum(1, dtype=np.float32)
    return summed
