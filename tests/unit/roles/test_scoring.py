"""What an algorithm is told of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlinf_core.roles.columns import Columns
from rlinf_core.roles.scoring import pad_rows, scored_batch
from rlinf_core.types import Experience, Trajectory


def row(version: int = 0, **more: Any) -> Experience:
    return Experience(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(2, dtype=bool),
        logprobs=np.zeros(2, dtype=np.float32),
        weight_version=version,
        reward=1.0,
        **more,
    )


def test_staleness_counts_versions_behind_the_trainer() -> None:
    staleness_B = scored_batch([row(7), row(5)], version=7).staleness_B
    assert staleness_B is not None
    assert staleness_B.tolist() == [0, 2]
    assert scored_batch([row(7)]).staleness_B is None


def test_baselines_are_there_if_every_row_has_one() -> None:
    found = scored_batch([row(baseline=0.25), row(baseline=0.0)]).baselines_B
    assert found is not None
    assert found.tolist() == [0.25, 0.0]
    assert scored_batch([row(baseline=0.25), row()]).baselines_B is None


def test_final_values_are_zero_but_for_rows_that_have_one() -> None:
    found = scored_batch([row(final_value=0.5), row()]).final_values_B
    assert found is not None
    assert found.tolist() == [0.5, 0.0]


def test_the_longest_response_reaches_advantages_and_loss() -> None:
    assert scored_batch([row()], max_length=9).max_length == 9
    ones_BT = pad_rows([np.ones(2)], np.float32)
    columns = Columns(ones_BT > 0, ones_BT, ones_BT, max_length=9)
    assert columns.micro_batch(torch.tensor([0]), 2, {}).max_length == 9


def test_an_episode_says_how_many_positions_a_decision_has() -> None:
    episode = Trajectory(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(6, dtype=bool),
        logprobs=np.zeros(6, dtype=np.float32),
        weight_version=0,
        reward=1.0,
        observations={},
        actions=np.zeros((2, 3, 4)),
    )
    assert scored_batch([episode]).positions == 3
    assert scored_batch([row()]).positions == 1
