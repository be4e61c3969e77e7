"""Records episodes, each from its own start to its own end.

Axes: T decision steps, N environments, R environments whose episode runs, C actions of a chunk,
K positions of a decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rlinf_core.api.instructions import instruction_bytes
from rlinf_core.errors import PluginError
from rlinf_core.roles.shaping import RewardShaping, Shaping
from rlinf_core.types import EpisodeRequest, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api import ActionSample, Observation, Transition

_STRIDE = np.uint64(0xD1342543DE82EF95)  # odd: a decision's seed is its episode's plus a multiple of this
_SEED_MASK = np.uint64(0x7FFFFFFFFFFFFFFF)
_ROOM = 16  # decisions at first


class Seats:
    """The environments of one simulator, and the episodes that run in them.

    An episode ends with termination, a time limit or its first success, whichever is first; what its
    environment does afterwards is not recorded. A success ends the task, also where the simulator goes on,
    and at the very step of a time limit: only episodes that a limit cut short of both success and
    termination are `truncated`, and keep what was seen last, from which returns are bootstrapped.
    """

    def __init__(self, count: int, max_episode_steps: int, shaping: RewardShaping = "none") -> None:
        self.limit = max_episode_steps
        self._shaping = Shaping(shaping, count)
        self.running_N = np.zeros(count, dtype=bool)
        self._requests: list[EpisodeRequest | None] = [None] * count
        self._seeds_N = np.zeros(count, dtype=np.uint64)
        self._decisions_N = np.zeros(count, dtype=np.int64)
        self._executed_N = np.zeros(count, dtype=np.int64)  # actions
        self._columns: dict[str, NDArray[Any]] = {}  # [N, T, ...], room for more decisions than there are

    def seat(self, n: int, request: EpisodeRequest) -> None:
        """Environment n has started the episode that was asked for."""
        self._requests[n] = request
        self._seeds_N[n] = request.seed
        self.running_N[n] = True
        self._shaping.begin(n)
        self._decisions_N[n] = self._executed_N[n] = 0

    def leave(self, n: int) -> EpisodeRequest:
        """Environment n has lost its episode, which this request was for."""
        self.running_N[n] = False
        return cast("EpisodeRequest", self._requests[n])

    def given_up(self, n: int, version: int) -> Trajectory:
        """An episode that was lost too often, of which nothing is trained or counted."""
        row = self._trajectory(n, version, False, None)
        row.mask = np.zeros_like(row.mask)
        row.reward, row.finish = None, "abort"
        row.error = "the process of its simulator died, hung or raised an error, again after a new start"
        return row

    def seeds(self) -> list[int]:
        """Of the next decision in every environment whose episode runs."""
        at = self.running_N
        drawn: list[int] = (
            (self._seeds_N[at] + self._decisions_N[at].astype(np.uint64) * _STRIDE) & _SEED_MASK
        ).tolist()
        return drawn

    def add(
        self, shown: dict[str, NDArray[Any]], sample: ActionSample, transition: Transition, version: int
    ) -> list[Trajectory]:
        """Record one decision in every environment whose episode runs, which the rows of `shown` and `sample`
        are of; returns the episodes that it ended."""
        at = np.flatnonzero(self.running_N)
        executed_RC = _until_success(transition)[at]
        paid_RC = self._shaping.paid(at, transition.rewards_NC[at], executed_RC, transition.success_N[at])
        self._record(
            at,
            {
                "actions": sample.actions.numpy(),
                "executed": executed_RC,
                **positions(sample, executed_RC, paid_RC),
                **({} if sample.latents is None else {"latents": sample.latents.numpy()}),
                **{f"shown/{name}": array for name, array in shown.items()},
            },
        )
        self._decisions_N[at] += 1
        self._executed_N[at] += executed_RC.sum(1)
        return self._ended(transition, version)

    def _record(self, at: NDArray[np.int64], values: dict[str, NDArray[Any]]) -> None:
        """One decision of the environments at these places."""
        when = self._decisions_N[at]
        for name, value in values.items():
            column = self._columns.get(name)
            if column is None:
                column = np.zeros((len(self.running_N), _ROOM, *value.shape[1:]), dtype=value.dtype)
            while column.shape[1] <= when.max():
                column = np.concatenate([column, np.zeros_like(column)], axis=1)
            column[at, when] = value
            self._columns[name] = column

    def _ended(self, transition: Transition, version: int) -> list[Trajectory]:
        success_N = transition.success_N
        terminated_N = np.logical_or.reduce(transition.terminated_NC, axis=1)
        late_N = transition.truncated_NC.any(1) | (self._executed_N >= self.limit)
        ended = np.flatnonzero(self.running_N & (success_N | terminated_N | late_N))
        self.running_N[ended] = False
        return [
            self._trajectory(
                int(n),
                version,
                bool(success_N[n]),
                None if success_N[n] or terminated_N[n] else _seen_last(transition, int(n)),
            )
            for n in ended
        ]

    def _trajectory(
        self, n: int, version: int, success: bool, last: dict[str, NDArray[Any]] | None
    ) -> Trajectory:
        cut = {name: column[n, : self._decisions_N[n]].copy() for name, column in self._columns.items()}
        request = cast("EpisodeRequest", self._requests[n])
        actions, rewards_T = cut["actions"], cut["rewards"].reshape(-1)
        return Trajectory(
            group=request.group,
            replica=request.replica,
            seed=request.seed,
            mask=cut["mask"].reshape(-1),
            logprobs=cut["logprobs"].reshape(-1),
            weight_version=version,
            finish="stop" if last is None else "length",
            reward=float(rewards_T.sum()),
            step_rewards=rewards_T,
            observations={
                name.removeprefix("shown/"): cut[name] for name in cut if name.startswith("shown/")
            },
            actions=actions,
            executed=cut["executed"] if actions.ndim > 1 else None,
            latents=cut.get("latents"),
            success=success,
            truncated=last is not None,
            final_observation=last,
        )


def positions(
    sample: ActionSample, executed_RC: NDArray[np.bool_], paid_RC: NDArray[np.float32]
) -> dict[str, NDArray[Any]]:
    """`mask`, `logprobs` and `rewards` `[R, K]` of the K positions of a decision: one, or those
    of `sample.logprobs_NK`. An action's reward stands on its last position."""
    count, chunk = executed_RC.shape
    if sample.logprobs_NK is None:
        mask_RK = executed_RC.any(1, keepdims=True)
        logprobs_RK = _chunk_logprobs(sample, executed_RC)[:, None]
        paid_RK = paid_RC.sum(1, keepdims=True, dtype=np.float32)
    else:
        each = sample.logprobs_NK.shape[1] // chunk
        mask_RK = executed_RC.repeat(each, 1)
        logprobs_RK = _array(sample.logprobs_NK) * mask_RK
        paid_RK = np.zeros((count, chunk, each), dtype=np.float32)
        paid_RK[:, :, -1] = paid_RC
        paid_RK = paid_RK.reshape(count, -1)
    return {"mask": mask_RK, "logprobs": logprobs_RK, "rewards": paid_RK}


def _chunk_logprobs(sample: ActionSample, executed_RC: NDArray[np.bool_]) -> NDArray[np.float32]:
    """`[R]` log-probabilities of what was executed of each chunk."""
    if sample.logprobs_NC is None:
        return _array(sample.logprobs_N)
    each_RC = _array(sample.logprobs_NC)
    summed: NDArray[np.float32] = (each_RC * executed_RC).sum(1, dtype=np.float32)
    return summed


def _array(tensor: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = tensor.float().cpu().numpy()
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


def observation_arrays(
    observation: Observation, n: int | slice | NDArray[np.int64] = slice(None)
) -> dict[str, NDArray[Any]]:
    """`state`, `images/CAMERA` and `instruction` (bytes) of all environments, some or one, copied, so that a
    simulator may reuse its buffers."""
    arrays: dict[str, NDArray[Any]] = {}
    if observation.state is not None:
        arrays["state"] = _owned(observation.state[n]).astype(np.float32, copy=False)
    for camera, images in observation.images.items():
        arrays[f"images/{camera}"] = _owned(images[n])
    if observation.instruction is not None:
        arrays["instruction"] = instruction_bytes(observation.instruction)[n]
    return arrays


def _owned(array: NDArray[Any]) -> NDArray[Any]:
    """Itself if nobody else has its memory, as after a choice of rows; else a copy."""
    return array if array.flags.owndata else array.copy()
