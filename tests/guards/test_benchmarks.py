"""Every benchmark has its place on the page, and the page is rewritten there and nowhere else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_all(monkeypatch) -> ModuleType:
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("benchmarks_run_all", folder / "run_all.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("common", None)


def test_every_benchmark_has_marks_on_the_page(run_all):
    page = (ROOT / "docs/benchmarks.md").read_text()
    found = run_all.benchmarks()
    assert {"cli_start", "rollout", "grpo_vs_trl"} <= set(found)
    assert not {"common", "counting", "run_all"} & set(found)
    for name in found:
        assert "new rows" in run_all.with_block(page, name, "new rows")


def test_only_the_marked_part_of_the_page_changes(run_all):
    kept = "<!-- results of c -->\nkept\n<!-- end of c -->\n"
    page = f"before\n<!-- results of a.b -->\nold\n<!-- end of a.b -->\n{kept}"
    assert run_all.with_block(page, "a.b", r"a \1 b") == (
        f"before\n<!-- results of a.b -->\n\na \\1 b\n\n<!-- end of a.b -->\n{kept}"
    )
    with pytest.raises(KeyError, match="no marks '<!-- results of d -->'"):
        run_all.with_block(page, "d", "x")


def test_a_result_becomes_a_table_with_what_it_was_measured_on(run_all):
    result = {"ratio": 2.34567, "rounds": 3, "machine": "two cores", "versions": {"torch": "2.13.0"}}
    assert run_all.block(result, "2026-01-02").splitlines() == [
        "| key | value |",
        "|---|---|",
        "| `ratio` | 2.346 |",
        "| `rounds` | 3 |",
        "",
        "Measured on 2026-01-02 with torch 2.13.0 on two cores.",
    ]


def test_a_script_without_a_result_is_an_error_that_names_it(run_all, tmp_path):
    (tmp_path / "quiet.py").write_text("print('no json')")
    with pytest.raises(RuntimeError, match=r"the last line of quiet\.py is no JSON object: 'no json'"):
        run_all.result_of(tmp_path / "quiet.py")
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    with pytest.raises(RuntimeError, match=r"broken\.py ended with 3 after 0 lines"):
        run_all.result_of(tmp_path / "broken.py")
