"""What a user says on the command line, in one light record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RECIPES = Path(__file__).parent / "recipes"
DEFAULTS = "defaults"  # beside the recipes, and none itself


def recipe_names() -> list[str]:
    """Of the recipes that come with rlinf."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem != DEFAULTS)


@dataclass(frozen=True)
class Options:
    """What a user says on the command line; None is "not said"."""

    algo: str | None = None
    backend: str | None = None
    rollout: str | None = None
    model: str | None = None
    data: str | None = None
    reward: tuple[str, ...] = ()
    simulator: str | None = None
    engine: str | None = None
    address: str | None = None
    recipe: str | None = None
    config: tuple[Path, ...] = ()
    output: str | None = None
    seed: int | None = None
    steps: int | None = None
    ranks: int | None = None
    mode: str | None = None
    lr: float | None = None
    lora_rank: int | None = None
    group_size: int | None = None
    overrides: tuple[str, ...] = ()
