"""Questions about drawn pictures: how many blocks there are, and where one lies."""

from __future__ import annotations

import random

from rlinf_core.builtin.datasets.blocks import COLOURS, cells, describe, draw_blocks
from rlinf_core.builtin.datasets.config import CountingBlocksConfig, SpatialRelationsConfig
from rlinf_core.builtin.datasets.synthetic import SyntheticDataset
from rlinf_core.types import Row


class CountingBlocks(SyntheticDataset):
    """`Count the blocks that are red` among others; a wrong demonstration says another number."""

    config: CountingBlocksConfig
    varied_by = "data.grid"

    def draw(self, rng: random.Random) -> tuple[str, Row]:
        config = self.config
        colour, *others = rng.sample(list(COLOURS), len(COLOURS))
        count, distractors = rng.randint(1, config.most), rng.randint(0, config.distractors)
        colours = [colour] * count + rng.choices(others, k=distractors)
        layout = dict(zip(cells(config.grid, len(colours), rng), colours, strict=True))
        shown = count
        if rng.random() < config.noise:
            shown = rng.choice([number for number in range(1, config.most + 1) if number != count])
        row = Row(
            prompt=f"Count the blocks that are {colour}",
            answer=str(count),
            demonstration=str(shown),
            images=(draw_blocks(layout, config.grid, config.pixels, rng),),
        )
        return f"{colour}: {describe(layout)}", row


class SpatialRelations(SyntheticDataset):
    """`Where is the red block, seen from the blue one?` A wrong demonstration says another direction."""

    config: SpatialRelationsConfig
    varied_by = "data.grid"
    directions = ("left", "right", "above", "below")

    def draw(self, rng: random.Random) -> tuple[str, Row]:
        config = self.config
        one, other, *rest = rng.sample(list(COLOURS), len(COLOURS))
        places = cells(config.grid, 2 + config.distractors, rng)
        while abs(places[0][0] - places[1][0]) == abs(places[0][1] - places[1][1]):
            places = cells(config.grid, 2 + config.distractors, rng)
        layout = dict(zip(places, [one, other, *rng.choices(rest, k=config.distractors)], strict=True))
        answer = shown = _direction(places[0][0] - places[1][0], places[0][1] - places[1][1])
        if rng.random() < config.noise:
            shown = rng.choice([direction for direction in self.directions if direction != answer])
        row = Row(
            prompt=f"Where is the {one} block, seen from the {other} one?",
            answer=answer,
            demonstration=shown,
            images=(draw_blocks(layout, config.grid, config.pixels, rng),),
        )
        return f"{one} {other}: {describe(layout)}", row


def _direction(down: int, right: int) -> str:
    """Of the larger distance."""
    if abs(right) > abs(down):
        return "right" if right > 0 else "left"
    return "below" if down > 0 else "above"
