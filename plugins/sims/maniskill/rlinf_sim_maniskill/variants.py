"""The put-on-plate tasks, and how episodes of them are drawn.

Names and what each varies are those of RL4VLA's benchmark (arXiv:2505.19789, section 4 and appendix), which
tests vision, semantics and execution apart; so are the grid of places, distances, turns and joint offsets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import ConfigError
from rlinf_sim_maniskill.catalogue import OBJECTS, PLATES, SPLIT, TABLES, Catalogue

PREFIX = "PutOnPlateInScene25"
CENTRE, HALF_EDGE = (-0.16, 0.0), 0.075  # of the square that things are put in, metres
CELLS = np.linspace(0.0, 1.0, 6)
OUTSIDE = (-0.2, 1.2)  # the rows and columns around it
NEAR, FAR = 0.07, 0.15  # centres of things are at least so far apart
TURNS = (0.0, 0.25, 0.5, 0.75)  # of half a circle
UNSEEN_TURNS = (-0.125, -0.375, -0.625, -0.875)
JOINTS = 6
OFFSETS = (-0.15, -0.08, 0.0, 0.08, 0.15)  # radians, of the first five joints
WRIST_OFFSETS = (-0.6, -0.3, 0.0, 0.3, 0.6)
REACH = 0.25  # the offsets of shoulder and elbow together
MOVED_AT = 5  # the step before which an object is moved

Subset = Literal["train", "test", "all"]


@dataclass(frozen=True)
class Variant:
    """What `simulator.objects` chooses among, beside what is as in training; and what is done to pictures."""

    objects: bool = False
    plates: bool = False
    tables: bool = False
    phrasings: bool = False
    places: bool = False
    joints: bool = False
    moved: bool = False
    other: Literal["", "object", "plate"] = ""  # a second one, which is not meant
    texture: float = 0.0  # strength of a texture over robot and objects
    noise: float = 0.0  # strength of a texture over all


VARIANTS = {
    "Main-v3": Variant(objects=True, tables=True),
    "VisionImage-v1": Variant(tables=True),
    "VisionTexture03-v1": Variant(texture=0.3),
    "VisionTexture05-v1": Variant(texture=0.5),
    "VisionWhole03-v1": Variant(noise=0.3),
    "VisionWhole05-v1": Variant(noise=0.5),
    "Carrot-v1": Variant(objects=True),
    "Plate-v1": Variant(plates=True),
    "Instruct-v1": Variant(phrasings=True),
    "MultiCarrot-v1": Variant(objects=True, other="object"),
    "MultiPlate-v1": Variant(plates=True, other="plate"),
    "Position-v1": Variant(places=True),
    "EEPose-v1": Variant(joints=True),
    "PositionChangeTo-v1": Variant(moved=True),
}


@dataclass(frozen=True)
class Episode:
    """Where an episode starts. Places are of centres, on the table."""

    object: int
    plate: int
    table: int | None
    other: int | None
    object_at: NDArray[np.float64]
    plate_at: NDArray[np.float64]
    other_at: NDArray[np.float64] | None
    moved_to: NDArray[np.float64] | None
    turn: float  # of the object, radians
    offsets: NDArray[np.float64]  # of the robot's joints
    phrasing: int


def check(variant: Variant, catalogue: Catalogue, subset: Subset) -> None:
    """Raises `ConfigError` if the folder has nothing that an episode could be about."""
    if (variant.texture or variant.noise) and not catalogue.tables:
        raise ConfigError(
            f"simulator.id (maniskill): this task mixes textures into pictures, and "
            f"{catalogue.folder} has no {TABLES}"
        )
    if variant.phrasings and subset == "test" and len(catalogue.phrasings) < 2:
        raise ConfigError(
            f"simulator.objects (maniskill): 'test' needs more phrasings in {catalogue.folder}: there is "
            "one, and the first is for training"
        )
    for where, count, chosen in (
        (OBJECTS, len(catalogue.objects), variant.objects),
        (PLATES, len(catalogue.plates), variant.plates),
        (TABLES, len(catalogue.tables), variant.tables),
    ):
        needed = 2 if variant.other and (OBJECTS, PLATES)[variant.other == "plate"] == where else 1
        there = _range(where, count, subset if chosen else "train")
        if where == TABLES and not count:
            continue
        if variant.other == "plate" and where == PLATES and subset == "train":
            there = range(count)  # the other one may be any
        if len(there) < needed:
            raise ConfigError(
                f"simulator.objects (maniskill): {subset!r} needs more entries in "
                f"{catalogue.folder / where}: it has {count}, and the first {SPLIT[where]} are for training"
            )


def draw(variant: Variant, catalogue: Catalogue, subset: Subset, seed: int) -> Episode:
    """The episode of a seed; the same on every machine."""
    random = np.random.default_rng(seed)
    objects = _range(OBJECTS, len(catalogue.objects), subset if variant.objects else "train")
    plates = _range(PLATES, len(catalogue.plates), subset if variant.plates else "train")
    tables = _range(TABLES, len(catalogue.tables), subset if variant.tables else "train")
    which, plate = int(random.choice(objects)), int(random.choice(plates))
    unseen = variant.places and subset != "train"
    first, second, third = _places(random, variant, unseen and (subset == "test" or random.random() < 0.5))
    others = objects if variant.other == "object" else plates
    if variant.other == "plate" and subset == "train":
        others = range(len(catalogue.plates))
    mine = which if variant.other == "object" else plate
    phrasings = _range_of_phrasings(len(catalogue.phrasings), subset if variant.phrasings else "train")
    return Episode(
        object=which,
        plate=plate,
        table=int(random.choice(tables)) if len(tables) else None,
        other=int(random.choice([n for n in others if n != mine])) if variant.other else None,
        object_at=first,
        plate_at=second,
        other_at=third if variant.other else None,
        moved_to=third if variant.moved and subset != "train" else None,
        turn=math.pi * float(random.choice(UNSEEN_TURNS if unseen else TURNS)),
        offsets=_offsets(random) if variant.joints and subset != "train" else np.zeros(JOINTS),
        phrasing=int(random.choice(phrasings)),
    )


def _range(where: str, count: int, subset: Subset) -> range:
    """The entries of an index that a subset has."""
    split = min(SPLIT[where], count)
    return {"train": range(split), "test": range(split, count), "all": range(count)}[subset]


def _range_of_phrasings(count: int, subset: Subset) -> range:
    return {"train": range(1), "test": range(1, count), "all": range(count)}[subset]


def _places(
    random: np.random.Generator, variant: Variant, unseen: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Of the object, the plate, and a third one, which stands apart from them where it is used."""
    cells = _ring() if unseen else [(x, y) for x in CELLS for y in CELLS]
    grid = np.array(CENTRE) + (2 * np.array(cells) - 1) * HALF_EDGE
    apart = (FAR, NEAR) if variant.other == "plate" else (NEAR, FAR)  # of the third from plate and object
    free = not (variant.other or variant.moved)
    while True:
        first, second, third = grid[random.integers(len(grid), size=3)]
        if _distance(first, second) > NEAR and (
            free or (_distance(third, second) > apart[0] and _distance(third, first) > apart[1])
        ):
            return first, second, third


def _distance(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(first - second))


def _ring() -> list[tuple[float, float]]:
    rows = (OUTSIDE[0], *CELLS, OUTSIDE[1])
    return [(x, y) for x in rows for y in rows if x in OUTSIDE or y in OUTSIDE]


def _offsets(random: np.random.Generator) -> NDArray[np.float64]:
    while True:
        offsets = np.append(random.choice(OFFSETS, size=JOINTS - 1), random.choice(WRIST_OFFSETS))
        if abs(offsets[1] + offsets[2]) <= REACH and offsets.any():
            return offsets
