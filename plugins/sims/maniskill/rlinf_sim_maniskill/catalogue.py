"""What a folder of assets has for the put-on-plate tasks: objects, plates, tables and phrasings.

The folder is laid out as the assets of RL4VLA are (arXiv:2505.19789): `more_carrot`, `more_plate` and, for
pictures, `more_table`, each with an index `model_db.json`, whose order says what is seen in training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.errors import ConfigError

OBJECTS, PLATES, TABLES = "more_carrot", "more_plate", "more_table"
INDEX = "model_db.json"
COLLISION = ("collision.obj", "collision.ply", "collision.glb", "textured.obj", "textured.glb")
LOOKS = ("textured.obj", "textured.dae", "textured.glb")
DENSITY = 1000.0  # kg / m3
SPLIT = {OBJECTS: 16, PLATES: 1, TABLES: 16}  # so many are for training, the others for tests
PHRASINGS = (  # the first is that of training; `phrasings.json` of the folder replaces them
    "put {object} on {plate}",
    "lift {object} and leave it on {plate}",
    "{plate} should hold {object} in the end",
    "bring {object} over to {plate}",
    "I want to see {object} lying on {plate}",
    "let {object} rest upon {plate}",
    "carry {object} across the table and drop it on {plate}",
    "grab {object}, then release it above {plate}",
    "have {object} end up on {plate}",
    "serve {object} on {plate}",
    "transfer {object} onto {plate}, would you",
    "find {object} and bring it to {plate}",
    "your job: {object} goes on {plate}",
    "do not leave {object} on the table, {plate} is its place",
    "where is {object}? It belongs on {plate}",
    "stack {object} on top of {plate}",
    "use {plate} to hold {object}",
)


@dataclass(frozen=True)
class Item:
    """An object or a plate."""

    name: str  # as instructions call it
    collision: Path
    looks: Path
    scale: float
    density: float
    low: NDArray[np.float64]  # corners of the box around it, scaled, in its own frame
    high: NDArray[np.float64]

    @property
    def half(self) -> NDArray[np.float64]:
        """Of the box around it."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Table:
    """What pictures show behind the robot and the objects, and what may be mixed into them."""

    picture: Path
    texture: Path
    mix: float  # how much of the texture, times the strength of the task


@dataclass(frozen=True)
class Catalogue:
    """All that there is, in the order of the indexes."""

    folder: Path
    objects: list[Item]
    plates: list[Item]
    tables: list[Table] = field(default_factory=list)
    phrasings: tuple[str, ...] = PHRASINGS


def read_catalogue(folder: str) -> Catalogue:
    """Raises `ConfigError` for what is missing or does not fit."""
    if not folder:
        raise ConfigError(
            "simulator.assets (maniskill): the put-on-plate tasks need a folder of objects and plates; "
            "docs/simulators-maniskill.md says how it is laid out"
        )
    root = Path(folder).expanduser()
    phrasings = root / "phrasings.json"
    tables = root / TABLES
    return Catalogue(
        root,
        [_item(root / OBJECTS, key, entry) for key, entry in _index(root / OBJECTS).items()],
        [_item(root / PLATES, key, entry) for key, entry in _index(root / PLATES).items()],
        [_table(tables, key, entry) for key, entry in _index(tables).items()] if tables.exists() else [],
        _phrasings(phrasings) if phrasings.exists() else PHRASINGS,
    )


def _index(folder: Path) -> dict[str, Mapping[str, Any]]:
    path = folder / INDEX
    if not path.exists():
        raise ConfigError(
            f"simulator.assets (maniskill): {path} is missing: an index such as "
            '{"carrot": {"name": "carrot", "scale": 1.0}}, with a folder of files for each key'
        )
    found: dict[str, Mapping[str, Any]] = _read(path, dict)
    return found


def _phrasings(path: Path) -> tuple[str, ...]:
    texts = tuple(_read(path, list))
    for text in texts:
        try:
            text.format(object="", plate="")
        except (AttributeError, LookupError, ValueError) as err:
            raise ConfigError(
                f"simulator.assets (maniskill): {path}: {text!r} must be a text with {{object}} and {{plate}}"
            ) from err
    return texts


def _read(path: Path, kind: type) -> Any:  # Any: JSON values
    try:
        found = json.loads(path.read_text())
    except ValueError as err:
        raise ConfigError(f"simulator.assets (maniskill): {path} is no JSON: {err}") from err
    if not isinstance(found, kind) or not found:
        name = "an object" if kind is dict else "a list"
        raise ConfigError(f"simulator.assets (maniskill): {path} must be {name} with at least one entry")
    return found


def _item(folder: Path, key: str, entry: Mapping[str, Any]) -> Item:
    place = folder / key
    collision, looks = _file(place, COLLISION), _file(place, LOOKS)
    scales = entry.get("scale", entry.get("scales", 1.0))
    scale = float(scales[0] if isinstance(scales, list) else scales)
    if "bbox" in entry:
        low, high = (np.array(entry["bbox"][end], dtype=np.float64) for end in ("min", "max"))
    else:
        low, high = _bounds(collision)
    return Item(
        name=entry.get("name", key.replace("_", " ")),
        collision=collision,
        looks=looks,
        scale=scale,
        density=float(entry.get("density", DENSITY)),
        low=low * scale,
        high=high * scale,
    )


def _table(folder: Path, key: str, entry: Mapping[str, Any]) -> Table:
    picture = _file(folder / "imgs", (key,))
    texture = _file(folder / "textures", (str(entry.get("texture", key)),))
    return Table(picture, texture, float(entry.get("mix", 1.0)))


def _file(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"simulator.assets (maniskill): {folder} has none of {', '.join(names)}")


def _bounds(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of a mesh; OBJ files are read here, others by trimesh."""
    if path.suffix == ".obj":
        points = [line.split()[1:4] for line in path.read_text().splitlines() if line.startswith("v ")]
        corners = np.array(points, dtype=np.float64)
        return corners.min(axis=0), corners.max(axis=0)
    import trimesh

    low, high = trimesh.load(path, force="scene").bounds
    return np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
