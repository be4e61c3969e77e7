"""The put-on-plate tasks: what episodes are drawn from, what is paid, and what pictures show."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_sim_maniskill.catalogue import Catalogue, read_catalogue
from rlinf_sim_maniskill.overlay import Overlay
from rlinf_sim_maniskill.variants import VARIANTS, Subset, Variant, check, draw

from rlinf_core.errors import ConfigError

Found = dict[str, Any]
WriteAssets = Callable[..., Path]
EDGE = 0.075


@pytest.fixture(scope="module")
def catalogue(write_assets: WriteAssets, tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """The numbers of things that the published assets have."""
    return read_catalogue(str(write_assets(tmp_path_factory.mktemp("assets"), 25, 17, 21)))


def drawn(catalogue: Catalogue, name: str, subset: Subset, count: int = 300) -> Any:
    return [draw(VARIANTS[name], catalogue, subset, seed) for seed in range(count)]


@pytest.mark.parametrize(
    ("name", "subset", "objects", "plates", "tables"),
    [
        ("Main-v3", "train", range(16), range(1), range(16)),
        ("Main-v3", "test", range(16, 25), range(1), range(16, 21)),
        ("Main-v3", "all", range(25), range(1), range(21)),
        ("VisionImage-v1", "test", range(16), range(1), range(16, 21)),
        ("Carrot-v1", "test", range(16, 25), range(1), range(16)),
        ("Plate-v1", "test", range(16), range(1, 17), range(16)),
        ("Position-v1", "test", range(16), range(1), range(16)),
        ("MultiPlate-v1", "train", range(16), range(1), range(16)),
    ],
)
def test_each_task_varies_what_it_is_about_and_nothing_else(
    catalogue: Catalogue, name: str, subset: Subset, objects: range, plates: range, tables: range
) -> None:
    episodes = drawn(catalogue, name, subset)
    assert {each.object for each in episodes} == set(objects)
    assert {each.plate for each in episodes} == set(plates)
    assert {each.table for each in episodes} == set(tables)


def test_things_stand_on_a_grid_of_six_by_six_and_apart(catalogue: Catalogue) -> None:
    episodes = drawn(catalogue, "Main-v3", "train")
    cells = {round(float(each.object_at[0] + 0.16 + EDGE) / (2 * EDGE) * 5, 6) for each in episodes}
    assert cells == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    assert min(np.linalg.norm(each.object_at - each.plate_at) for each in episodes) > 0.07
    assert {round(each.turn / math.pi, 6) for each in episodes} == {0.0, 0.25, 0.5, 0.75}
    assert all(not each.offsets.any() and each.moved_to is None and each.other is None for each in episodes)


def test_unseen_places_are_around_the_square_and_turned_otherwise(catalogue: Catalogue) -> None:
    for each in drawn(catalogue, "Position-v1", "test"):
        for place in (each.object_at, each.plate_at):
            assert np.abs(place - [-0.16, 0.0]).max() == pytest.approx(1.4 * EDGE)
        assert each.turn < 0
    assert all(each.turn >= 0 for each in drawn(catalogue, "Position-v1", "train"))


def test_a_second_thing_is_another_one_and_stands_apart(catalogue: Catalogue) -> None:
    for each in drawn(catalogue, "MultiCarrot-v1", "test"):
        assert each.other in range(16, 25)
        assert each.other != each.object
        assert np.linalg.norm(each.other_at - each.object_at) > 0.15
        assert np.linalg.norm(each.other_at - each.plate_at) > 0.07
    plates = drawn(catalogue, "MultiPlate-v1", "train")
    assert {each.other for each in plates} == set(
        range(1, 17)
    )  # the one of training, beside one of the others
    assert min(np.linalg.norm(each.other_at - each.plate_at) for each in plates) > 0.15


def test_robots_start_elsewhere_and_objects_move_in_tests_alone(catalogue: Catalogue) -> None:
    for each in drawn(catalogue, "EEPose-v1", "test"):
        assert each.offsets.any()
        assert np.abs(each.offsets[:5]).max() <= 0.15
        assert abs(each.offsets[1] + each.offsets[2]) <= 0.25
    for each in drawn(catalogue, "PositionChangeTo-v1", "test"):
        assert np.linalg.norm(each.moved_to - each.object_at) > 0.15
    assert all(each.moved_to is None for each in drawn(catalogue, "PositionChangeTo-v1", "train"))
    assert not any(each.offsets.any() for each in drawn(catalogue, "EEPose-v1", "train"))


def test_a_seed_draws_the_same_episode_and_phrasings_of_tests_are_not_that_of_training(
    catalogue: Catalogue,
) -> None:
    one, same, other = (draw(VARIANTS["Main-v3"], catalogue, "train", seed) for seed in (5, 5, 6))
    assert (one.object, one.table, one.turn) == (same.object, same.table, same.turn)
    np.testing.assert_array_equal(one.object_at, same.object_at)
    assert (one.object, one.table, *one.object_at) != (other.object, other.table, *other.object_at)
    assert {each.phrasing for each in drawn(catalogue, "Instruct-v1", "test")} == set(range(1, 17))
    assert {each.phrasing for each in drawn(catalogue, "Instruct-v1", "train")} == {0}


def test_boxes_are_measured_scaled_or_taken_from_the_index(write_assets: WriteAssets, tmp_path: Path) -> None:
    root = write_assets(tmp_path, objects=2, plates=1)
    path = root / "more_carrot" / "model_db.json"
    index = json.loads(path.read_text())
    index["more_carrot_0"] |= {"scale": [2.0, 9.0]}
    index["more_carrot_1"] = {"bbox": {"min": [-1, -2, 0], "max": [1, 2, 4]}}
    path.write_text(json.dumps(index))
    (root / "phrasings.json").write_text('["{object} > {plate}"]')
    first, second = read_catalogue(str(root)).objects
    np.testing.assert_allclose(first.half, [0.03, 0.04, 0.03])  # twice 3 x 4 x 3 cm
    np.testing.assert_allclose(first.low, [-0.03, -0.04, 0.0])
    np.testing.assert_allclose(second.half, [1, 2, 2])
    assert (first.density, second.density, second.name) == (400, 1000, "more carrot 1")
    assert read_catalogue(str(root)).phrasings == ("{object} > {plate}",)


def test_a_folder_that_lacks_something_is_refused_by_its_path(
    write_assets: WriteAssets, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"simulator.assets \(maniskill\): the put-on-plate tasks need"):
        read_catalogue("")
    with pytest.raises(ConfigError, match=r"more_carrot/model_db.json is missing"):
        read_catalogue(str(tmp_path))
    root = write_assets(tmp_path, objects=16, plates=1)
    small = read_catalogue(str(root))
    with pytest.raises(ConfigError, match=r"'test' needs more entries in .*more_carrot: it has 16"):
        check(VARIANTS["Carrot-v1"], small, "test")
    with pytest.raises(ConfigError, match=r"'train' needs more entries in .*more_plate: it has 1"):
        check(VARIANTS["MultiPlate-v1"], small, "train")
    with pytest.raises(ConfigError, match="mixes textures into pictures"):
        check(VARIANTS["VisionTexture03-v1"], small, "train")
    (root / "phrasings.json").write_text('["put {object} on {plate}"]')
    with pytest.raises(ConfigError, match=r"'test' needs more phrasings in .*: there is one"):
        check(VARIANTS["Instruct-v1"], read_catalogue(str(root)), "test")
    for text, message in (
        ("[", "phrasings.json is no JSON"),
        ("{}", "phrasings.json must be a list with at least one entry"),
        ('["put {thing} there"]', r"'put {thing} there' must be a text with {object} and {plate}"),
        ("[7]", "7 must be a text with"),
    ):
        (root / "phrasings.json").write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_catalogue(str(root))
    (root / "phrasings.json").unlink()
    (root / "more_plate" / "more_plate_0" / "textured.obj").unlink()
    with pytest.raises(
        ConfigError, match=r"more_plate_0 has none of textured.obj, textured.dae, textured.glb"
    ):
        read_catalogue(str(root))


def put(catalogue: Catalogue, variant: Variant, table: int | None = 3) -> Any:
    """A grey picture of 8 x 8 whose middle 4 x 4 is robot."""
    overlay = Overlay(catalogue, variant)
    overlay.front = torch.tensor([7, 9])
    segmentation = torch.zeros(1, 8, 8, dtype=torch.int16)
    segmentation[0, 2:6, 2:6] = 9
    return overlay.put(torch.full((1, 8, 8, 3), 100, dtype=torch.uint8), segmentation, [table])[0].numpy()


def test_the_table_is_put_behind_the_robot(catalogue: Catalogue) -> None:
    seen = put(catalogue, Variant())
    assert seen[0, 0].tolist() == [30, 100, 185]  # the colour of table 3
    assert seen[2:6, 2:6].reshape(-1, 3).tolist() == [[100, 100, 100]] * 16
    assert (put(catalogue, Variant(), table=None) == 100).all()


def test_textures_are_mixed_by_their_strength_over_the_robot_or_over_all(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    from PIL import Image

    white = tmp_path / "white.png"
    Image.new("RGB", (4, 4), (255, 255, 255)).save(white)
    tables = [type(each)(each.picture, white, 0.8) for each in catalogue.tables]
    lit = Catalogue(catalogue.folder, catalogue.objects, catalogue.plates, tables)
    textured, noisy = put(lit, Variant(texture=0.5)), put(lit, Variant(noise=0.5))
    assert textured[0, 0].tolist() == [30, 100, 185]
    assert textured[3, 3].tolist() == [162] * 3  # 100 + 0.5 * 0.8 * 155
    assert noisy[3, 3].tolist() == [162] * 3
    assert noisy[0, 0].tolist() == [120, 162, 213]  # 30 + 0.4 * 225, 100 + 0.4 * 155, 185 + 0.4 * 70


@pytest.fixture(scope="module")
def played(inside: Callable[..., Found], tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What a script found out in ManiSkill's environment."""
    return inside("maniskill_plate.py", str(tmp_path_factory.mktemp("played")))


@pytest.mark.slow
def test_an_expert_reaches_grasp_hold_and_place_and_what_it_is_worth(played: Found) -> None:
    for each in played["placed"]:
        assert each["paid"] == [0.0, 0.1, 0.2, 1.2]
        assert each["falls"] is False
        assert each["held_after"] == 4  # the fifth step in a row
        assert each["success"] is True
    assert [each["instruction"] for each in played["placed"]] == [
        ["put block 7 on tray 0"],
        ["put block 13 on tray 0"],
    ]


@pytest.mark.slow
def test_things_stand_on_the_table_and_lie_still_unless_they_are_moved(played: Found) -> None:
    assert {name: played[name]["on_table"] for name in ("main", "plate", "objects", "plates")} == {
        "main": 2,
        "plate": 2,
        "objects": 3,
        "plates": 3,
    }
    assert played["main"]["instruction"] == "put block 17 on tray 0"
    assert played["plate"]["instruction"] == f"put block {played['plate']['object']} on tray 1"
    assert played["main"]["moved"] < 1e-3
    assert played["moved"]["moved"] > 0.15
    moved_by = np.subtract(played["pose"]["angles"], played["main"]["angles"])
    assert np.abs(moved_by[:6]).max() > 0.05
    assert moved_by[6] == 0


@pytest.mark.slow
def test_what_assets_or_robots_lack_is_said_before_anything_is_built(played: Found) -> None:
    assert "has no more_table" in played["without_tables"]
    assert "widowx250s" in played["widowx"]
    assert "simulator.robot (maniskill): 'fetch' does not put things on plates" in played["robot"]


@pytest.mark.slow
def test_pictures_show_the_table_of_the_episode(played: Found) -> None:
    seen = played["pictures"]
    if "skipped" in seen:
        pytest.skip(seen["skipped"])
    table = seen["table"]
    assert seen["corner"] == [10 * table, 100, 200 - 5 * table]
    assert 0.6 < seen["share"] < 0.99
    assert seen["drawn"] == [1, 256, 256, 3]
    assert seen["chunked"] is True  # the last picture of a chunk is that after its actions one by one
