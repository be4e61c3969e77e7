"""GAE against hand-computed episodes. gamma = 0.5, lam = 0.5 unless said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlinf_core.rl.gae import gae


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers])


def flags(*positions: int, width: int = 3) -> Tensor:
    marks = torch.zeros(1, width, dtype=torch.bool)
    marks[0, list(positions)] = True
    return marks


EVERYWHERE = torch.ones(1, 3, dtype=torch.bool)
REWARDS, VALUES = row(1.0, 2.0, 3.0), row(0.5, 1.0, 2.0)


def test_a_response_that_ends_takes_no_bootstrap() -> None:
    # deltas: 1 + .5 - .5 = 1; 2 + 1 - 1 = 2; 3 - 2 = 1.  A2 = 1; A1 = 2 + .25 = 2.25; A0 = 1 + .5625
    advantages, returns = gae(REWARDS, VALUES, EVERYWHERE, gamma=0.5, lam=0.5)
    torch.testing.assert_close(advantages, row(1.5625, 2.25, 1.0))
    torch.testing.assert_close(returns, row(2.0625, 3.25, 3.0))


def test_lam_one_and_gamma_one_give_returns_to_go_minus_values() -> None:
    advantages, returns = gae(REWARDS, VALUES, EVERYWHERE, gamma=1.0, lam=1.0)
    torch.testing.assert_close(returns, row(6.0, 5.0, 3.0))
    torch.testing.assert_close(advantages, row(5.5, 4.0, 1.0))


def test_a_running_episode_bootstraps_from_the_last_value() -> None:
    # delta2 = 3 + .5 * 4 - 2 = 3; A1 = 2 + .75; A0 = 1 + .25 * 2.75
    advantages, _ = gae(REWARDS, VALUES, EVERYWHERE, gamma=0.5, lam=0.5, last_values_B=torch.tensor([4.0]))
    torch.testing.assert_close(advantages, row(1.6875, 2.75, 3.0))


def test_a_time_limit_bootstraps_from_the_final_observation_and_termination_does_not() -> None:
    final = row(0.0, 8.0, 0.0)
    # ended at 1.  delta0 = 1; truncated: delta1 = 2 + .5 * 8 - 1 = 5; terminated: delta1 = 2 - 1 = 1
    truncated, _ = gae(
        REWARDS, VALUES, EVERYWHERE, gamma=0.5, lam=0.5, truncated_BT=flags(1), final_values_BT=final
    )
    torch.testing.assert_close(truncated, row(2.25, 5.0, 1.0))
    terminated, _ = gae(
        REWARDS, VALUES, EVERYWHERE, gamma=0.5, lam=0.5, terminated_BT=flags(1), final_values_BT=final
    )
    torch.testing.assert_close(terminated, row(1.25, 1.0, 1.0))


def test_termination_wins_where_a_simulator_reports_both() -> None:
    both, _ = gae(
        REWARDS,
        VALUES,
        EVERYWHERE,
        gamma=0.5,
        lam=0.5,
        terminated_BT=flags(1),
        truncated_BT=flags(1),
        final_values_BT=row(0.0, 8.0, 0.0),
    )
    torch.testing.assert_close(both, row(1.25, 1.0, 1.0))


@pytest.mark.parametrize("kind", ["terminated_BT", "truncated_BT"])
def test_nothing_leaks_over_the_edge_of_an_episode(kind: str) -> None:
    later = REWARDS + row(0.0, 0.0, 1000.0)
    shifted = VALUES + row(0.0, 0.0, 1000.0)
    plain, _ = gae(REWARDS, VALUES, EVERYWHERE, gamma=0.9, lam=0.9, **{kind: flags(1)})
    changed, _ = gae(later, shifted, EVERYWHERE, gamma=0.9, lam=0.9, **{kind: flags(1)})
    assert torch.equal(plain[:, :2], changed[:, :2])


def test_tokens_of_a_tool_take_no_step_and_get_exactly_zero() -> None:
    mask = torch.tensor([[True, False, False, True, True]])
    rewards, values = row(1.0, 9.0, 9.0, 2.0, 3.0), row(0.5, 7.0, 7.0, 1.0, 2.0)
    advantages, returns = gae(rewards, values, mask, gamma=0.5, lam=0.5)
    torch.testing.assert_close(advantages, row(1.5625, 0.0, 0.0, 2.25, 1.0))
    torch.testing.assert_close(returns, row(2.0625, 0.0, 0.0, 3.25, 3.0))


def test_padding_on_either_side_changes_nothing() -> None:
    for pad in ((0, 4), (4, 0)):
        mask = torch.nn.functional.pad(EVERYWHERE, pad, value=False)
        padded = [torch.nn.functional.pad(x, pad, value=3.3) for x in (REWARDS, VALUES)]
        advantages, _ = gae(padded[0], padded[1], mask, gamma=0.5, lam=0.5)
        torch.testing.assert_close(advantages[mask], torch.tensor([1.5625, 2.25, 1.0]))
