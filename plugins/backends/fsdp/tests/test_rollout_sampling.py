"""Counter-based uniforms and inverse-CDF draws against values computed otherwise."""

from __future__ import annotations

import numpy as np
import torch
from rlinf_backend_fsdp.rollout_sampling import draw, seed_keys, uniforms

from rlinf_core.types import Sampling

MASK = 2**64 - 1


def splitmix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_uniforms_follow_splitmix64_in_plain_integers() -> None:
    seeds, positions = np.array([0, 7, -1]), np.array([0, 3, 2**31])
    expected = []
    for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True):
        key = splitmix(((seed & MASK) * 0x9E3779B97F4A7C15 + 0xBF58476D1CE4E5B9) & MASK)
        bits = splitmix((key + (position + 1) * 0x9E3779B97F4A7C15) & MASK)
        expected.append((bits >> 41) / 2**23)
    assert uniforms(seed_keys(seeds), positions).tolist() == expected


def test_uniforms_are_flat_and_unrelated_between_neighbours() -> None:
    drawn = uniforms(np.repeat(seed_keys(np.arange(200)), 200), np.tile(np.arange(200), 200)).reshape(
        200, 200
    )
    assert 0 <= drawn.min() < drawn.max() < 1
    assert abs(np.histogram(drawn, 10, (0, 1))[0] / 4000 - 1).max() < 0.08
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 0.02


def test_a_draw_is_the_first_token_whose_cumulated_probability_exceeds_the_uniform() -> None:
    logits = torch.log(torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])).repeat(5, 1)
    tokens, logprobs = draw(logits, torch.tensor([0.0, 0.24, 0.25, 0.75, 1 - 2.0**-23]), Sampling())
    assert tokens.tolist() == [1, 1, 3, 4, 4]
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.25, 0.25, 0.5, 0.25, 0.25]))


def test_logprobs_are_those_of_the_transformed_distribution() -> None:
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    _, logprobs = draw(logits, torch.tensor([0.0]), Sampling(top_k=2))
    torch.testing.assert_close(logprobs.exp(), torch.tensor([4 / 7]))
    _, logprobs = draw(logits, torch.tensor([0.0]), Sampling(temperature=0.5))
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.16 / 0.30]))
    tokens, logprobs = draw(logits, torch.tensor([0.99]), Sampling(temperature=0.0))
    assert tokens.tolist() == [0]
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.4]))


def test_draws_follow_the_distribution() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 12)
    drawn = torch.from_numpy(uniforms(seed_keys(np.arange(40_000)), np.zeros(40_000, np.int64)))
    tokens, _ = draw(logits.repeat(40_000, 1), drawn, Sampling())
    counts = torch.bincount(tokens, minlength=12) / 40_000
    torch.testing.assert_close(counts, logits.softmax(-1)[0], rtol=0, atol=0.01)
