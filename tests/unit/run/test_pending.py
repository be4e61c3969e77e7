"""Rows in a file, and back."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from rlinf_core.errors import CheckpointError
from rlinf_core.flows.flow import Played
from rlinf_core.flows.parts import Open
from rlinf_core.run.pending import read_rows, write_rows
from rlinf_core.types import Begun, Experience, Prompt, Request, Sample, Trajectory

PROMPTS = [Prompt(index, np.array([index, 9]), "p", answer=object()) for index in range(3)]


def sample(**more: object) -> Sample:
    basis = {
        "group": 7,
        "replica": 1,
        "seed": 2**64 - 1,
        "mask": np.array([True, False, True]),
        "logprobs": np.array([-0.5, -np.inf, -2.0], dtype=np.float32),
        "weight_version": 4,
        "prompt": PROMPTS[2],
        "response_ids": np.array([3, 1, 2]),
    }
    return Sample(**{**basis, **more})  # type: ignore[arg-type]


def trajectory() -> Trajectory:
    return Trajectory(
        group=0,
        replica=0,
        seed=5,
        mask=np.ones(2, dtype=bool),
        logprobs=np.zeros(2, dtype=np.float32),
        weight_version=3,
        reward=np.float64(0.25),  # type: ignore[arg-type]
        reward_parts={"x": 0.25},
        observations={"state": np.arange(6.0).reshape(2, 3), "image": np.zeros((2, 4, 4, 3), dtype=np.uint8)},
        actions=np.arange(8.0, dtype=np.float32).reshape(2, 2, 2)[:, ::-1],
        executed=np.array([[True, True], [True, False]]),
        success=True,
        final_observation={"state": np.zeros((0, 3))},
    )


def check_same(one: Experience, other: Experience) -> None:
    assert type(one) is type(other)
    for item in fields(one):
        np.testing.assert_equal(getattr(other, item.name), getattr(one, item.name), item.name)
        if isinstance(getattr(one, item.name), np.ndarray):
            assert getattr(other, item.name).dtype == getattr(one, item.name).dtype
            assert getattr(other, item.name).flags.writeable


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows: list[Experience] = [
        sample(),
        sample(reward=1.5, text="\u00e9", weight_versions=np.array([4, 5, 5]), baseline=0.5, error="broken"),
        trajectory(),
    ]
    made = {
        3: Played(rows, [rows[2], rows[0]], {"train/rounds": 2.0}, {"env/restarts": 1.0}),
        4: Played([], []),
    }
    write_rows(tmp_path / "rows", made)
    found, opened = read_rows(tmp_path / "rows", PROMPTS.__getitem__)
    assert list(found) == [3, 4]
    assert not opened
    for one, other in zip(rows, found[3].rows, strict=True):
        check_same(one, other)
    assert found[3].kept[0] is found[3].rows[2]
    assert found[3].kept[1] is found[3].rows[0]
    assert (found[3].metrics, found[3].counts) == (made[3].metrics, made[3].counts)
    assert found[4] == made[4]


def test_prompts_that_an_agent_wrote_and_what_others_said_come_back(tmp_path: Path) -> None:
    pictured = Prompt(1, np.array([1, 9]), "p", images=(np.zeros((2, 2, 3), np.uint8),))
    own = sample(prompt=Prompt(1, np.array([5, 6, 7]), "p"))
    own.others = {"judge": sample(prompt=Prompt(1, np.array([8]), "p"), returned=0.5)}
    write_rows(tmp_path / "rows", {0: Played([own, sample(prompt=pictured)], [])})
    made, _ = read_rows(tmp_path / "rows", [PROMPTS[0], pictured].__getitem__)
    row, other = made[0].rows
    assert isinstance(row, Sample)
    assert isinstance(other, Sample)
    assert (row.prompt.token_ids.tolist(), row.prompt.images) == ([5, 6, 7], ())
    assert other.prompt is pictured
    judge = row.others["judge"]
    assert (judge.prompt.token_ids.tolist(), judge.returned) == ([8], 0.5)
    assert judge.logprobs.dtype == np.float32


def test_responses_that_have_begun_come_back_as_they_were(tmp_path: Path) -> None:
    begun = Begun(np.array([4, 5]), np.array([-0.5, -1.0], dtype=np.float32), np.array([1, 2]))
    going = [Request(PROMPTS[1], 4, 0, 2**63, begun), Request(PROMPTS[0], 5, 1, 7)]
    write_rows(tmp_path / "rows", {}, {6: Open(going, [sample()])})
    made, opened = read_rows(tmp_path / "rows", PROMPTS.__getitem__)
    assert not made
    assert list(opened) == [6]
    check_same(opened[6].whole[0], sample())
    assert opened[6].going == going
    found = opened[6].going[0].begun
    assert found is not None
    np.testing.assert_equal(vars(found), vars(begun))
    assert opened[6].going[1].begun is None


@pytest.mark.parametrize("content", [b"", b"\x80\x04\x95", b"\x02" + bytes(7) + b"[]", b"\xff" * 64])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(CheckpointError, match="does not hold rows to train on"):
        read_rows(tmp_path / "rows", PROMPTS.__getitem__)


def test_a_file_that_names_foreign_types_makes_none(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", {0: Played([sample()], [])})
    data = (tmp_path / "rows").read_bytes()
    length = int.from_bytes(data[:8], "little")
    told = json.loads(data[8 : 8 + length])
    told["steps"]["0"]["rows"][0] = {"os.system": {"command": "true"}}
    text = json.dumps(told).encode()
    (tmp_path / "rows").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(CheckpointError, match="KeyError"):
        read_rows(tmp_path / "rows", PROMPTS.__getitem__)
