"""The expert of a simulator of several tasks is Meta-World's own policy of each."""

from __future__ import annotations

import numpy as np
from metaworld.policies import ENV_POLICY_MAP
from rlinf_sim_metaworld.config import MetaWorldConfig
from rlinf_sim_metaworld.simulator import MetaWorldSimulator
from rlinf_sim_metaworld.tasks import chosen


def test_each_environment_has_the_policy_of_its_task_and_its_hand_the_speed_asked_for() -> None:
    ten = MetaWorldSimulator(MetaWorldConfig("MT10"), 3, 0)
    state_NS = ten.reset([3, 14, 20]).state
    assert state_NS is not None
    tasks = [chosen("MT10")[number] for number in (3, 4, 0)]
    expected = np.stack(
        [
            np.clip(ENV_POLICY_MAP[task]().get_action(state_S.astype(np.float64)), -1, 1)
            for task, state_S in zip(tasks, state_NS, strict=True)
        ]
    )
    np.testing.assert_allclose(ten.expert([1.0, 1.0, 1.0]), expected, atol=1e-6)
    slow = expected * np.array([[0.5] * 3 + [1], [1.0] * 4, [0.25] * 3 + [1]])
    np.testing.assert_allclose(ten.expert([0.5, 1.0, 0.25]), slow, atol=1e-6)
    assert (np.abs(expected[:, :3]).max(1) > 0.5).all()


def test_experts_succeed() -> None:
    for task in ("reach-v3", "drawer-open-v3", "button-press-topdown-v3"):
        four = MetaWorldSimulator(MetaWorldConfig(task), 4, 0)
        four.auto_reset = False
        four.reset([5, 6, 7, 8])
        done_N = np.zeros(4, dtype=bool)
        for _ in range(150):
            done_N |= four.step(four.expert([1.0] * 4)[:, None]).success_N
        assert done_N.all(), task
