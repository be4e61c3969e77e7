"""Records a wave of episodes that started together, each until its own end.

Axes: T decision steps, N environments, E episodes asked for (the first E of N), C actions of a chunk,
K positions of a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.api.instructions import instruction_bytes
from rlinf_core.errors import PluginError
from rlinf_core.types import EpisodeRequest, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api import ActionSample, Observation, Transition


class Wave:
    """An episode ends with termination, a time limit or its first success, whichever is first; what
    its environment does afterwards is not recorded.

    A success ends the task, also where the simulator goes on, and at the very step of a time limit: only
    episodes that a limit cut short of both success and termination are `truncated`, and keep what was seen
    last, from which returns are bootstrapped.
    """

    def __init__(self, requests: Sequence[EpisodeRequest], max_episode_steps: int) -> None:
        count = len(requests)
        self.requests = requests
        self.limit = max_episode_steps
        self.lengths_E = np.zeros(count, dtype=np.int64)
        self.executed_E = np.zeros(count, dtype=np.int64)  # actions
        self.success_E = np.zeros(count, dtype=bool)
        self.truncated_E = np.zeros(count, dtype=bool)
        self._running_E = np.ones(count, dtype=bool)
        self._last: dict[int, dict[str, NDArray[Any]]] = {}  # of truncated episodes
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
        executed_EC = _until_success(transition)[:count]
        self._steps.append(
            {
                "actions": sample.actions.numpy()[:count],
                "executed": executed_EC,
                **positions(sample, executed_EC, transition.rewards_NC[:count]),
                **({} if sample.latents is None else {"latents": sample.latents.numpy()[:count]}),
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
        late_E = self._running_E & late_E & ~terminated_E & ~success_E
        self.success_E |= self._running_E & success_E
        self.truncated_E |= late_E
        for i in np.flatnonzero(late_E):
            self._last[int(i)] = _seen_last(transition, int(i))
        self._running_E &= ~(success_E | terminated_E | late_E)

    def _trajectory(self, i: int, columns: dict[str, NDArray[Any]], version: int) -> Trajectory:
        def cut(name: str) -> NDArray[Any]:
            return np.ascontiguousarray(columns[name][: self.lengths_E[i], i])

        request, actions, rewards_T = self.requests[i], cut("actions"), cut("rewards").reshape(-1)
        return Trajectory(
            group=request.group,
            replica=request.replica,
            seed=request.seed,
            mask=cut("mask").reshape(-1),
            logprobs=cut("logprobs").reshape(-1),
            weight_version=version,
            finish="length" if self.truncated_E[i] else "stop",
            reward=float(rewards_T.sum()),
            step_rewards=rewards_T,
            observations={
                name.removeprefix("shown/"): cut(name) for name in columns if name.startswith("shown/")
            },
            actions=actions,
            executed=cut("executed") if actions.ndim > 1 else None,
            latents=cut("latents") if "latents" in columns else None,
            success=bool(self.success_E[i]),
            truncated=bool(self.truncated_E[i]),
            final_observation=self._last.get(i),
        )


def positions(
    sample: ActionSample, executed_EC: NDArray[np.bool_], rewards_EC: NDArray[np.float32]
) -> dict[str, NDArray[Any]]:
    """`mask`, `logprobs` and `rewards` `[E, K]` of the K positions of a decision: one, or those
    of `sample.logprobs_NK`. An action's reward stands on its last position."""
    count, chunk = executed_EC.shape
    paid_EC = np.where(executed_EC, rewards_EC, np.float32(0.0))
    if sample.logprobs_NK is None:
        mask_EK = executed_EC.any(1, keepdims=True)
        logprobs_EK = _chunk_logprobs(sample, executed_EC)[:, None]
        paid_EK = paid_EC.sum(1, keepdims=True, dtype=np.float32)
    else:
        each = sample.logprobs_NK.shape[1] // chunk
        mask_EK = executed_EC.repeat(each, 1)
        logprobs_EK = _array(sample.logprobs_NK, count) * mask_EK
        paid_EK = np.zeros((count, chunk, each), dtype=np.float32)
        paid_EK[:, :, -1] = paid_EC
        paid_EK = paid_EK.reshape(count, -1)
    return {"mask": mask_EK, "logprobs": logprobs_EK, "rewards": paid_EK}


def _chunk_logprobs(sample: ActionSample, executed_EC: NDArray[np.bool_]) -> NDArray[np.float32]:
    """`[E]` log-probabilities of what was executed of each chunk."""
    if sample.logprobs_NC is None:
        return _array(sample.logprobs_N, len(executed_EC))
    each_EC = _array(sample.logprobs_NC, len(executed_EC))
    summed: NDArray[np.float32] = (each_EC * executed_EC).sum(1, dtype=np.float32)
    return summed


def _array(tensor: Tensor, count: int) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.float().cpu().numpy()[:count]
    return array


def _until_success(transition: Transition) -> NDArray[np.bool_]:
    """`[N, C]` what was executed, up to the action that succeeded."""
    executed_NC = np.array(transition.executed_NC)
    if transition.success_NC is not None:
        executed_NC[:, 1:] &= ~np.logical_or.accumulate(transition.success_NC, axis=1)[:, :-1]
    return executed_NC


def _seen_last(transition: Transition, n: int) -> dict[str, NDArray[Any]]:
    """What environment `n`, cut by a time limit, showed before it was reset, if it was."""
    if not transition.truncated_NC[n].any():
        return observation_arrays(transition.observation, n)
    if transition.final_observation is None:
        raise PluginError(
            "the simulator cut an episode by its time limit and gave no final_observation; a Transition with "
            "truncated_NC needs what was seen before the reset (run `rlinf plugins check simulators NAME`)"
        )
    return observation_arrays(transition.final_observation, n)


def observation_arrays(observation: Observation, n: int | slice = slice(None)) -> dict[str, NDArray[Any]]:
    """`state`, `images/CAMERA` and `instruction` (bytes) of all environments or one, copied, so that a
    simulator may reuse its buffers."""
    arrays: dict[str, NDArray[Any]] = {}
    if observation.state is not None:
        arrays["state"] = np.array(observation.state[n], dtype=np.float32)
    for camera, images in observation.images.items():
        arrays[f"images/{camera}"] = np.array(images[n])
    if observation.instruction is not None:
        arrays["instruction"] = instruction_bytes(observation.instruction)[n]
    return arrays
