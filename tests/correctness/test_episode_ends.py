"""How episodes end, in a real simulator and for a critic (11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rlinf_core.types import Trajectory

PPO = ("algo=ppo", "algo.critic=head", "algo.gamma=0.9", "algo.gae_lambda=0", "algo.whiten=false")
LIMIT = 5


def played(row: Trajectory, seed: int) -> tuple[list[np.ndarray], list[bool]]:
    """What an environment of its own shows before each executed action and at the end, and falls."""
    environment = gymnasium.make("InvertedPendulum-v5", max_episode_steps=LIMIT)
    shown, _ = environment.reset(seed=seed)
    seen, fallen = [shown], []
    for chunk, executed in zip(row.actions, row.executed if row.executed is not None else [], strict=True):
        for action in chunk[executed]:
            space = environment.action_space
            shown, _, terminated, _, _ = environment.step(np.clip(action, space.low, space.high))
            seen.append(shown)
            fallen.append(terminated)
    environment.close()
    return seen, fallen


def test_each_episode_starts_where_the_reset_put_it_and_ends_before_the_next_one(
    embodied_run: Callable[..., Any],
) -> None:
    """Three environments play four and more episodes of 5 actions in chunks of 2: resets come in the middle
    of a chunk, and nothing that is shown after one is recorded."""
    run = embodied_run(*PPO, "algo.group_size=2")
    seeds = {request.group: request.initial_state for chunk in run.source.draw(0, 0, 4) for request in chunk}
    rows: list[Trajectory] = run.step(0).rows
    assert len(rows) == 8
    cut = [row for row in rows if row.truncated]
    assert cut
    for row in rows:
        seen, fallen = played(row, seeds[row.group])
        assert row.executed is not None
        starts = np.concatenate([[0], np.cumsum(row.executed.sum(1))[:-1]])
        expected = [seen[i] for i in starts]
        np.testing.assert_allclose(row.observations["state"], expected, atol=1e-5)
        assert row.truncated == (not fallen[-1])
        assert not any(fallen[:-1])
        assert row.executed.sum() == len(fallen) <= LIMIT
        if row.truncated:
            assert row.final_observation is not None
            np.testing.assert_allclose(row.final_observation["state"], seen[-1], atol=1e-5)
        else:
            assert row.final_observation is None


def test_a_time_limit_goes_on_with_the_value_of_what_was_seen_last_and_a_fall_does_not(
    embodied_run: Callable[..., Any],
) -> None:
    """lambda 0: the return of a decision is its reward plus gamma times the value of the next state."""
    run = embodied_run(*PPO, "algo.group_size=2")
    rows: list[Trajectory] = run.step(0).rows
    actor = run.worker("actor")
    with torch.no_grad():
        for name, parameter in actor.trainer.policy.named():
            if "value" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    fallen = next(i for i, row in enumerate(rows) if row.truncated)
    rows[fallen].truncated, rows[fallen].final_observation = False, None  # as if it had ended by itself
    _, _, columns = actor.updater.judge(rows, several=False)
    module = actor.trainer.policy.inner

    def value(state: Any) -> float:
        with torch.no_grad():
            return float(module({"state": torch.as_tensor(state, dtype=torch.float32)[None]}, values=True)[1])

    ends = []
    for row, returns_T in zip(rows, columns.returns_BT, strict=True):
        assert row.step_rewards is not None
        states = row.observations["state"]
        last = 0.0
        if row.truncated:
            assert row.final_observation is not None
            last = value(row.final_observation["state"])
        following = [*(value(state) for state in states[1:]), last]
        ends.append(last)
        expected = [r + 0.9 * v for r, v in zip(row.step_rewards.tolist(), following, strict=True)]
        assert returns_T[: len(expected)].tolist() == pytest.approx(expected, abs=1e-5)
    assert ends[fallen] == 0.0
    assert max(map(abs, ends)) > 0.05
