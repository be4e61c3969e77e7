"""Drawn pictures and pictures in files: what they show, and the mistakes people make with them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_core.builtin.datasets import synthetic
from rlinf_core.builtin.datasets.blocks import BACKGROUND, COLOURS, draw_blocks
from rlinf_core.builtin.datasets.config import (
    CountingBlocksConfig,
    HubConfig,
    JsonlConfig,
    ParquetConfig,
    SpatialRelationsConfig,
)
from rlinf_core.builtin.datasets.files import Jsonl, Parquet
from rlinf_core.builtin.datasets.hub import HubDataset
from rlinf_core.builtin.datasets.visual import CountingBlocks, SpatialRelations
from rlinf_core.errors import ConfigError, DataError
from rlinf_core.types import Row

GRID, ROOM = 4, 8  # cells across, and pixels of a cell


def seen(row: Row) -> dict[tuple[int, int], str]:
    """What the picture shows, read off its pixels: the colour of each cell that has a block."""
    (picture,) = row.images
    names = {colour: name for name, colour in COLOURS.items()}
    layout = {}
    for number in range(GRID * GRID):
        down, right = divmod(number, GRID)
        cell = picture[down * ROOM : (down + 1) * ROOM, right * ROOM : (right + 1) * ROOM].reshape(-1, 3)
        block = cell[(cell != BACKGROUND).any(1)]
        if len(block):
            assert len(block) == 36, "a block is 6 x 6 and lies within its cell"
            (colour,) = {tuple(map(int, pixel)) for pixel in block}
            layout[down, right] = names[colour]
    return layout


def test_the_answer_is_the_number_of_blocks_that_the_picture_shows() -> None:
    data = CountingBlocks(CountingBlocksConfig(), "train", 0)
    rows = [data[i] for i in range(400)]
    for row in rows:
        assert row.images[0].shape == (32, 32, 3)
        assert row.images[0].dtype == np.uint8
        asked = str(row.prompt).removeprefix("Count the blocks that are ")
        assert row.answer == str(list(seen(row).values()).count(asked))
    wrong = [row.demonstration != row.answer for row in rows]
    assert 0.42 < np.mean(wrong) < 0.58
    assert {row.answer for row in rows} == set("123456")


def test_a_split_without_questions_names_the_setting_that_makes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "is_eval", lambda question: False)
    monkeypatch.setattr(synthetic, "MAX_DRAWS", 3)
    with pytest.raises(DataError, match=r"CountingBlocks has too few .* eval split .*; raise data.grid"):
        CountingBlocks(CountingBlocksConfig(), "eval", 0)[0]


def test_the_answer_is_the_direction_of_the_larger_distance() -> None:
    data = SpatialRelations(SpatialRelationsConfig(), "eval", 0)
    answers = []
    for i in range(40):
        row = data[i]
        one, other = str(row.prompt).split()[3], str(row.prompt).split()[8]
        places = {colour: cell for cell, colour in seen(row).items()}
        down, right = (a - b for a, b in zip(places[one], places[other], strict=True))
        assert abs(down) != abs(right)
        across, along = ("right" if right > 0 else "left"), ("below" if down > 0 else "above")
        assert row.answer == (across if abs(right) > abs(down) else along)
        answers.append(row.answer)
    assert set(answers) == {"left", "right", "above", "below"}


@pytest.mark.parametrize(
    ("data", "config"), [(CountingBlocks, CountingBlocksConfig), (SpatialRelations, SpatialRelationsConfig)]
)
def test_a_layout_belongs_to_one_split_and_rows_to_their_seed(data: Any, config: Any) -> None:
    few = config(grid=2, distractors=0, noise=0, **({"most": 2} if data is CountingBlocks else {}))

    def shown(split: Any, count: int) -> set[tuple[Any, ...]]:
        rows = (data(few, split, 0)[i] for i in range(count))
        return {(row.prompt, row.answer, *sorted(_cells(row))) for row in rows}

    assert not shown("train", 300) & shown("eval", 30)
    first, again = data(config(), "train", 5)[7], data(config(), "train", 5)[7]
    assert (first, first.images[0].tobytes()) == (again, again.images[0].tobytes())
    assert first.images[0].tobytes() != data(config(), "train", 6)[7].images[0].tobytes()


def _cells(row: Row) -> list[tuple[int, int, int]]:
    """Rows, columns and first colour channel of the blocks in a picture of 2 x 2 cells of 16 pixels."""
    (picture,) = row.images
    found = []
    for number in range(4):
        down, right = divmod(number, 2)
        middle = picture[down * 16 + 8, right * 16 + 8]
        if (middle != BACKGROUND).any():
            found.append((down, right, int(middle[0])))
    return found


def test_settings_that_cannot_be_drawn_are_refused() -> None:
    for wrong in ({"pixels": 8}, {"most": 17}, {"distractors": 11}, {"grid": 1}):
        with pytest.raises(ConfigError, match="counting_blocks must be between"):
            CountingBlocksConfig(**wrong)
    with pytest.raises(ConfigError, match="spatial_relations must be between 0 and 14"):
        SpatialRelationsConfig(distractors=15)


def drawn(colour: str) -> bytes:
    """A PNG file of one block."""
    import random

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(draw_blocks({(0, 1): colour}, 2, 16, random.Random(0))).save(buffer, "png")
    return buffer.getvalue()


def records(folder: Path, count: int = 3) -> list[dict[str, Any]]:
    """Rows that name pictures in a folder of their own."""
    (folder / "pictures").mkdir()
    for i in range(count):
        (folder / "pictures" / f"{i}.png").write_bytes(drawn(["red", "green", "blue"][i]))
    return [{"prompt": "q", "answer": "a", "image": f"pictures/{i}.png"} for i in range(count)]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_paths_in_json_lines_start_beside_the_file_or_in_a_folder(tmp_path: Path) -> None:
    rows = records(tmp_path)
    config = JsonlConfig(write(tmp_path / "d.jsonl", rows), image_key="image", holdout=1)
    row = Jsonl(config, "train", 0)[1]
    assert [image.shape for image in row.images] == [(16, 16, 3)]
    assert COLOURS["green"] in {tuple(map(int, pixel)) for pixel in row.images[0].reshape(-1, 3)}
    assert row.meta == {}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    both = [{**row, "image": ["0.png", "2.png"]} for row in rows]
    path = write(elsewhere / "d.jsonl", both)
    moved = JsonlConfig(path, image_key="image", image_folder=str(tmp_path / "pictures"), holdout=1)
    assert len(Jsonl(moved, "train", 0)[0].images) == 2


def test_a_changed_picture_changes_the_fingerprint(tmp_path: Path) -> None:
    config = JsonlConfig(write(tmp_path / "d.jsonl", records(tmp_path)), image_key="image", holdout=1)
    before = Jsonl(config, "train", 0).fingerprint()
    assert before == Jsonl(config, "train", 0).fingerprint()
    (tmp_path / "pictures" / "0.png").write_bytes(drawn("red") + b" ")
    assert before != Jsonl(config, "train", 0).fingerprint()


def test_bad_pictures_name_row_and_key(tmp_path: Path) -> None:
    rows = records(tmp_path)
    (tmp_path / "text.png").write_text("no picture")
    for cell, words in (
        (
            "pictures/9.png",
            r"line 2: the picture 'pictures/9.png' of 'image' \(data.image_key\) does not exist",
        ),
        (7, r"line 2: 'image' \(data.image_key\) must hold the path of a picture.* not int"),
        ("", "must hold the path of a picture.* not ''"),
    ):
        path = write(tmp_path / "d.jsonl", [rows[0], {**rows[1], "image": cell}, rows[2]])
        with pytest.raises(DataError, match=words):
            Jsonl(JsonlConfig(path, image_key="image", holdout=1), "train", 0)
    path = write(tmp_path / "d.jsonl", rows)
    with pytest.raises(DataError, match=r"no key 'photo' \(data.image_key\); keys there: 'prompt', 'answer'"):
        Jsonl(JsonlConfig(path, image_key="photo", holdout=1), "train", 0)
    path = write(tmp_path / "d.jsonl", [{**row, "image": "text.png"} for row in rows])
    data = Jsonl(JsonlConfig(path, image_key="image", holdout=1), "train", 0)
    with pytest.raises(DataError, match=r"line 1: .*text.png \('image', data.image_key\) is not a readable"):
        data[0]


def test_pictures_in_parquet_and_in_image_columns_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    cells = [{"bytes": drawn(colour), "path": None} for colour in ("red", "green", "blue")]
    texts = {"prompt": ["q"] * 3, "answer": ["a"] * 3}
    parquet.write_table(pyarrow.table({**texts, "image": cells}), tmp_path / "d.parquet")
    config = ParquetConfig(str(tmp_path / "d.parquet"), image_key="image", holdout=1)
    features = datasets.Features(
        {"prompt": datasets.Value("string"), "answer": datasets.Value("string"), "image": datasets.Image()}
    )
    table = datasets.Dataset.from_dict({**texts, "image": cells}, features=features)
    table.save_to_disk(str(tmp_path / "saved"))
    hub = HubConfig(path=str(tmp_path / "saved"), image_key="image", holdout=1)
    for data in (Parquet(config, "train", 0), HubDataset(hub, "train", 0)):
        pixels = {tuple(map(int, pixel)) for pixel in data[1].images[0].reshape(-1, 3)}
        assert pixels == {COLOURS["green"], (BACKGROUND,) * 3}
        assert data[1].meta == {}
