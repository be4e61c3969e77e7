"""GAE against hand-computed episodes. gamma = 0.5, lam = 0.5 unless said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlinf_core.rl.gae import discounted_returns, gae


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


def by_definition(
    rows: dict[str, NDArray[np.float64]], last: float, gamma: float, lam: float
) -> NDArray[np.float64]:
    """One row's advantages as the sum `sum_k (gamma lam)^k delta_{t+k}` over its own episode's decisions."""
    steps = np.flatnonzero(rows["mask"])
    deltas, ends = [], []
    for place, t in enumerate(steps):
        if rows["terminated"][t]:
            following = 0.0
        elif rows["truncated"][t]:
            following = rows["final"][t]
        elif place + 1 < len(steps):
            following = rows["values"][steps[place + 1]]
        else:
            following = last
        deltas.append(rows["rewards"][t] + gamma * following - rows["values"][t])
        ends.append(bool(rows["terminated"][t] or rows["truncated"][t]))
    advantages = np.zeros(len(rows["mask"]))
    for place, t in enumerate(steps):
        stop = next((end for end in range(place, len(steps)) if ends[end]), len(steps) - 1)
        powers = (gamma * lam) ** np.arange(stop - place + 1)
        advantages[t] = powers @ np.array(deltas[place : stop + 1])
    return advantages


@pytest.mark.parametrize("seed", range(20))
def test_rows_with_gaps_ends_and_padding_equal_the_sum_of_the_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    shape, gamma, lam = (25, 17), random.choice([0.9, 1.0]), random.choice([0.0, 0.8, 1.0])
    columns = np.arange(shape[1])
    first, last = random.integers(0, 5, (25, 1)), random.integers(9, 18, (25, 1))
    rows: dict[str, NDArray[np.float64]] = {
        name: random.normal(size=shape) for name in ("rewards", "values", "final")
    }
    rows["mask"] = (random.random(shape) < 0.7) & (columns >= first) & (columns < last)
    rows["terminated"], rows["truncated"] = random.random(shape) < 0.1, random.random(shape) < 0.1
    bootstrap = random.normal(size=25)
    given = {name: torch.from_numpy(values) for name, values in rows.items()}
    advantages, returns = gae(
        given["rewards"].masked_fill(~given["mask"], torch.nan),
        given["values"].masked_fill(~given["mask"], torch.nan),
        given["mask"],
        gamma=gamma,
        lam=lam,
        terminated_BT=given["terminated"],
        truncated_BT=given["truncated"],
        final_values_BT=given["final"],
        last_values_B=torch.from_numpy(bootstrap),
    )
    expected = np.stack(
        [
            by_definition({name: values[row] for name, values in rows.items()}, bootstrap[row], gamma, lam)
            for row in range(25)
        ]
    )
    np.testing.assert_allclose(advantages, expected, atol=1e-12)
    np.testing.assert_allclose(returns, np.where(rows["mask"], expected + rows["values"], 0.0), atol=1e-12)


def test_an_episode_that_resets_inside_a_row_starts_afresh() -> None:
    # ended at 1, auto-reset, ended at 3.  A1 = 2 - 1; A0 = .5 + .5 - .5 + .25 * A1; A3 = 1 - 2;
    # A2 = 0 + .5 * 2 - 1 + .25 * A3; and 4 runs on into the last value 4: 1 + .5 * 4 - 3
    advantages, _ = gae(
        row(0.5, 2.0, 0.0, 1.0, 1.0),
        row(0.5, 1.0, 1.0, 2.0, 3.0),
        torch.ones(1, 5, dtype=torch.bool),
        gamma=0.5,
        lam=0.5,
        terminated_BT=flags(1, 3, width=5),
        last_values_B=torch.tensor([4.0]),
    )
    torch.testing.assert_close(advantages, row(0.75, 1.0, -0.25, -1.0, 0.0))


def test_precision_is_that_of_the_values_but_at_least_float32() -> None:
    assert gae(REWARDS.double(), VALUES.double(), EVERYWHERE, gamma=1.0, lam=1.0)[0].dtype == torch.float64
    assert gae(REWARDS, VALUES.bfloat16(), EVERYWHERE, gamma=1.0, lam=1.0)[0].dtype == torch.float32


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_no_rows_or_no_steps_give_nothing(shape: tuple[int, int]) -> None:
    mask = torch.ones(shape, dtype=torch.bool)
    advantages, returns = gae(torch.ones(shape), torch.ones(shape), mask, gamma=1.0, lam=1.0)
    assert advantages.shape == returns.shape == shape


def test_discounted_returns_skip_what_is_masked() -> None:
    # 4; 2 + .5 * 4; 1 + .5 * 4, and the 9 of a tool counts nowhere
    mask = torch.tensor([[False, True, False, True, True, False]])
    returns = discounted_returns(row(9.0, 1.0, 9.0, 2.0, 4.0, 9.0), mask, 0.5)
    torch.testing.assert_close(returns, row(0.0, 3.0, 0.0, 4.0, 4.0, 0.0))
