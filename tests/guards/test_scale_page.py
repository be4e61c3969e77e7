"""The page about many GPUs says what its script computes, and the script what can be worked out by hand."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rlinf_core.api.resizing import Block
from rlinf_core.schedule.elastic import plan_moves

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scale() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("scale", ROOT / "benchmarks/scale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale"] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["scale"]


def test_the_page_has_the_tables_of_the_script(scale: ModuleType) -> None:
    page = (ROOT / "docs/scale.md").read_text()
    assert scale.filled(page) == page, "write them by `python benchmarks/scale.py --write`"
    with pytest.raises(KeyError, match="no marks '<!-- table of inputs -->'"):
        scale.filled("nothing")


def test_seconds_of_a_step_are_those_worked_out_by_hand(scale: ModuleType) -> None:
    job = scale.JOBS[0]
    assert (job.model.name, job.gpus, job.samples) == ("70B dense", 1024, 16384)
    drawing = scale.drawing(job, 8)
    assert drawing.fixed_s == pytest.approx(32_000 * (141.2e9 / 8 / 2.01e12 + 0.002), rel=1e-3)
    assert drawing.per_sample_s == pytest.approx(8_000 * (5_000 * 327_680 / 8 / 2.01e12 + 44.6e-6), rel=1e-2)
    assert scale.training(job, 6, reduces=False).per_sample_s == pytest.approx(1.2047, rel=1e-3)
    assert scale.tail_s(job, 8) == pytest.approx(24_000 * 10.78e-3, rel=1e-3)
    assert scale.broadcast_s(job.model) == pytest.approx(3.53)


def test_what_plans_keep_in_memory_is_there(scale: ModuleType) -> None:
    for job in scale.JOBS:
        for ahead in (False, True):
            found = scale.best(job, ahead=ahead)
            assert scale.cached(job, found.plan) <= scale.CACHE
            assert found.plan.prediction.memory_bytes <= scale.MEMORY


def test_nobody_takes_in_more_than_a_scale_event_says(scale: ModuleType) -> None:
    """The moments of one GPU's share of the model, over 6 copies and then 7, by the plan that moves them."""
    entries, copies = 6 * 7 * 10, 6

    def layout(ranks: int) -> dict[int, list[Block]]:
        size = entries // ranks
        return {
            rank: [Block("moments", "float32", 4, (entries,), (rank * size,), (size,))]
            for rank in range(ranks)
        }

    moves = plan_moves(layout(copies), layout(copies + 1))
    taken = [
        sum(each.nbytes for each in moves.transfers if each.target == rank) for rank in range(copies + 1)
    ]
    assert max(taken) == taken[copies] == 4 * entries // (copies + 1)
    assert moves.moved_bytes == 4 * entries // 2
    model = scale.DENSE
    moments = scale.Growth(model, copies).moments
    assert moments == pytest.approx(12 * model.parameters / 8 / 7)
    assert scale.Growth(model, copies).grow_s == pytest.approx((141.2e9 / 8 + moments) / 40e9)


def test_what_was_measured_is_still_about_that(scale: ModuleType) -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    found = dict(
        re.findall(
            r"^\| `(\w+)` \| ([\d.e+-]+) \|$", page.partition("<!-- results of weight_sync -->")[2], re.M
        )
    )
    for name, value in scale.MEASURED.items():
        assert 0.5 < float(found[name]) / value < 2.0, f"{name}: put the new value into benchmarks/scale.py"
