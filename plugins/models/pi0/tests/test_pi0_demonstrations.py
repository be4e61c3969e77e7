"""Flow matching of somebody else's actions, against transformers' own loss, and what it teaches.

Axes: N decisions, C actions of a chunk, A action dimensions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import pi0_ranks as support
from rlinf_model_pi0.matching import Matching

SEEDS = list(range(4))
LOGPROBS: Any = frozenset({"logprobs"})


def chosen() -> torch.Tensor:
    """Actions of four decisions, within -0.5 and 1.5."""
    return torch.rand(4, 8, 3, generator=torch.Generator().manual_seed(4)) * 2.0 - 0.5


def test_errors_are_those_of_transformers_loss_where_actions_are() -> None:
    model = support.flow(level="token", chunk=8)
    module = support.wake(model.module(3))
    seen, actions = support.shown(), chosen()
    labelled = model.label(actions, SEEDS)
    assert torch.equal(labelled.actions, actions)
    row = support.episode(labelled, seen, slice(0, 4), each=24)
    row.executed = None
    judged = model.policy_outputs(module, model.collate([row]), LOGPROBS).logprobs_BT
    units = torch.zeros(4, 8, 32)
    units[..., :3] = actions - 0.5  # the box is -0.5 to 1.5
    drawn = Matching.unpacked(labelled.latents, 8, 32)
    inputs = model._bound.collate_shown(seen)
    pictures = model._bound.pictures(inputs)
    module.config.loss_reduction = "none"
    found = module(
        state=model._bound.state(inputs),
        noise=drawn.wanted_MCA + units,
        timestep=drawn.time_M,
        input_ids=inputs["tokens"].clamp(min=0),
        attention_mask=(inputs["tokens"] >= 0).long(),
        pixel_values=pictures,
        pixel_attention_mask=torch.ones(pictures.shape[:2], dtype=torch.bool),
        actions=units,
    )
    torch.testing.assert_close(judged[0], -found.loss[..., :3].flatten(), atol=1e-4, rtol=1e-4)
    assert found.loss.std() > 0.1


def test_times_and_noise_have_their_distributions() -> None:
    drawn = Matching.drawn(torch.full((4000, 1, 2), 3.0), range(4000))
    time = (drawn.time_M - 0.001) / 0.999
    assert float(time.mean()) == pytest.approx(0.6, abs=0.02)  # of Beta(1.5, 1): 1.5 / 2.5
    assert float((time < 0.5).double().mean()) == pytest.approx(0.5**1.5, abs=0.02)
    noise = drawn.wanted_MCA + 3.0
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.05)
    assert float(noise.std()) == pytest.approx(1.0, abs=0.05)
    t = drawn.time_M[:, None, None]
    torch.testing.assert_close(drawn.state_MCA, t * noise + (1 - t) * 3.0, atol=1e-5, rtol=1e-5)
    again = Matching.drawn(torch.full((2, 1, 2), 3.0), [7, 5])
    assert torch.equal(again.time_M, drawn.time_M[[7, 5]])


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "tiny_pi05"])
def test_a_flow_learns_the_actions_that_it_is_shown(preset: Any) -> None:
    model = support.flow(preset=preset, chunk=8, train="all")
    module = model.module(3)
    seen = support.shown()
    sides = (seen["state"][:, :1, None] > 0).float().expand(4, 8, 3)  # 0 or 1, as the state says
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=2e-3)
    losses = []
    for step in range(100):
        labelled = [model.label(sides, [100 * step + 10 * copy + n for n in SEEDS]) for copy in range(4)]
        rows = [support.episode(each, seen, slice(0, 4)) for each in labelled]
        for row in rows:
            row.executed = None
        judged = model.policy_outputs(module, model.collate(rows), LOGPROBS).logprobs_BT
        losses.append(-float(judged.detach().mean()) / 24)
        optimizer.zero_grad()
        (-judged.mean()).backward()
        optimizer.step()
    assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[:3])
    found = model.act(module, seen, SEEDS, greedy=True).actions
    assert len(set(sides[:, 0, 0].tolist())) == 2
    assert (found - sides).abs().mean() < 0.3
