"""`parametrize_with_checks` as a plugin author uses it."""

from __future__ import annotations

import subprocess
import sys

from rlinf_core.testing import parametrize_with_checks


@parametrize_with_checks("engines", "inline")
def test_the_inline_engine_conforms(check):
    check()


def test_checks_are_tests_of_their_own_with_ids_marks_and_skips(tmp_path):
    (tmp_path / "test_author.py").write_text(
        "from rlinf_core.testing import parametrize_with_checks\n"
        "@parametrize_with_checks('simulators', 'line')\n"
        "def test_it(check): check()\n"
    )
    (tmp_path / "line.py").write_text(
        "from rlinf_core.plugins import SimulatorSpec, hookimpl\n"
        "class Endless: pass\n"
        "@hookimpl\n"
        "def rlinf_register_simulators():\n"
        "    return [SimulatorSpec(name='line', summary='', target='line:Endless')]\n"
    )
    info = tmp_path / "line-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: line\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlinf.simulators]\nline = line\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "-p",
            "no:cacheprovider",
            "--strict-markers",
            "-m",
            "conformance",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "test_author.py::test_it[line-check_simulators_seeding] FAILED" in done.stdout
    assert "9 failed" in done.stdout


def test_the_pytest_plugin_imports_nothing_heavy():
    code = (
        "import sys, rlinf_core.testing.pytest_plugin\n"
        "print([m for m in ('torch', 'numpy', 'typer', 'rlinf_core.plugins') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
