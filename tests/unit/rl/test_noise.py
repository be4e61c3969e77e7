"""Counter-based noise: reproducible by row, and of the right distribution."""

from __future__ import annotations

import numpy as np

from rlinf_core.rl.noise import normals, uniforms


def test_a_row_depends_on_its_own_seed_alone() -> None:
    seeds = [7, 2**63 - 1, -5, 0]
    together = normals(seeds, 5)
    for i, seed in enumerate(seeds):
        assert np.array_equal(normals([seed], 5)[0], together[i])
    assert len(np.unique(together)) == together.size


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    mixed = uniforms([-1, 2**64 - 1, 2**70 + 3, 3], 2)
    assert np.array_equal(mixed[0], mixed[1])
    assert np.array_equal(mixed[2], mixed[3])
    assert np.array_equal(uniforms([-1], 2)[0], mixed[0])
    assert np.array_equal(uniforms(np.array([3]), 2)[0], mixed[3])


def test_consecutive_seeds_give_independent_uniform_numbers() -> None:
    drawn = uniforms(range(20_000), 4)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert np.allclose(drawn.mean(0), 0.5, atol=0.01)
    assert np.allclose(np.corrcoef(drawn.T), np.eye(4), atol=0.03)
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.03


def test_normals_have_the_moments_of_a_standard_normal() -> None:
    drawn = normals(range(40_000), 3)
    assert np.allclose(drawn.mean(0), 0.0, atol=0.02)
    assert np.allclose(drawn.std(0), 1.0, atol=0.02)
    assert np.allclose((drawn**4).mean(0), 3.0, atol=0.15)
    assert np.allclose(np.corrcoef(drawn.T), np.eye(3), atol=0.02)
