"""Primitive shapes in the layout of the put-on-plate assets, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

FACES = (  # of a box, corners counted from 1, seen from outside against the clock
    *((1, 4, 3), (1, 2, 4), (5, 8, 6), (5, 7, 8), (1, 6, 2), (1, 5, 6)),
    *((3, 8, 7), (3, 4, 8), (1, 7, 5), (1, 3, 7), (2, 8, 4), (2, 6, 8)),
)


def write_box(path: Path, size: tuple[float, float, float], colour: tuple[float, float, float]) -> None:
    """A box that stands on z = 0, with its colour in a material file."""
    x, y, z = size
    corners = [(i * x / 2, j * y / 2, k * z) for i in (-1, 1) for j in (-1, 1) for k in (0, 1)]
    lines = [f"mtllib {path.stem}.mtl", "usemtl paint"]
    lines += [f"v {a} {b} {c}" for a, b, c in corners]
    lines += [f"f {a} {b} {c}" for a, b, c in FACES]
    path.write_text("\n".join(lines) + "\n")
    r, g, b = colour
    path.with_suffix(".mtl").write_text(f"newmtl paint\nKd {r} {g} {b}\n")


def write_assets(root: Path, objects: int = 18, plates: int = 3, tables: int = 0) -> Path:
    """Boxes of 3 x 4 x 3 cm, plates of 14 x 14 x 1 cm, tables of one colour each with a striped texture."""
    for kind, count, size in (
        ("more_carrot", objects, (0.03, 0.04, 0.03)),
        ("more_plate", plates, (0.14, 0.14, 0.01)),
    ):
        index = {}
        for n in range(count):
            folder = root / kind / f"{kind}_{n}"
            folder.mkdir(parents=True)
            colour = (
                (0.9, 0.3 + 0.6 * n / count, 0.1)
                if kind == "more_carrot"
                else (0.1, 0.5, 0.2 + 0.8 * n / count)
            )
            for name in ("collision.obj", "textured.obj"):
                write_box(folder / name, size, colour)
            index[folder.name] = {
                "name": f"{'block' if kind == 'more_carrot' else 'tray'} {n}",
                "density": 400,
            }
        (root / kind / "model_db.json").write_text(json.dumps(index))
    if tables:
        _write_tables(root / "more_table", tables)
    return root


def _write_tables(folder: Path, count: int) -> None:
    (folder / "imgs").mkdir(parents=True)
    (folder / "textures").mkdir()
    index = {}
    for n in range(count):
        Image.new("RGB", (64, 48), (10 * n, 100, 200 - 5 * n)).save(folder / "imgs" / f"{n}.png")
        stripes = np.zeros((32, 32, 3), dtype=np.uint8)
        stripes[::4] = 255
        Image.fromarray(stripes).save(folder / "textures" / f"{n}.png")
        index[f"{n}.png"] = {"texture": f"{n}.png", "mix": 0.8}
    (folder / "model_db.json").write_text(json.dumps(index))
