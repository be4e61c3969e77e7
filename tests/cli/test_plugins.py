"""The command line as a user meets it: `rlinf plugins`, errors, exit codes, and how light it is."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rlinf_core.cli import app as command_line
from rlinf_core.cli import plugins as plugins_command
from rlinf_core.errors import ConfigError, WorkerError

HEAVY = "('torch', 'numpy', 'transformers', 'omegaconf')"


def rlinf(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.argv[0] = 'rlinf'; from rlinf_core.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def in_process(*arguments: str) -> str:
    result = CliRunner().invoke(plugins_command.app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def _children_cpu_s() -> float:
    """CPU time, as other work on the machine makes the clock's time say little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list"], ["plugins", "list", "--json"]])
def test_help_and_list_are_quick_and_import_nothing_heavy(arguments):
    code = (
        f"import sys; sys.argv = ['rlinf', *{arguments!r}]\n"
        "from rlinf_core.cli.app import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        f"print('heavy:', [m for m in {HEAVY} if m in sys.modules])"
    )
    taken_s = []
    for _ in range(3):
        began_s = _children_cpu_s()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        taken_s.append(_children_cpu_s() - began_s)
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert min(taken_s) < 0.8  # 0.25-0.35 s on an idle machine


def test_the_version_is_the_distribution_s():
    from importlib.metadata import version

    assert rlinf("--version").stdout == f"rlinf {version('rlinf-core')}\n"


def test_a_mistake_is_one_message_and_exit_code_2():
    done = rlinf("plugins", "show", "engine", "locl")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no engines plugin 'locl'; installed: ")
    assert "Did you mean 'local'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_is_looked_up_in_all_kinds():
    assert "no plugin 'lokal'" in rlinf("plugins", "show", "lokal").stderr
    assert in_process("show", "local").startswith("local: One process per rank on this machine")


def test_a_worker_s_traceback_comes_first_and_once(capsys):
    error = WorkerError("actor[1] raised ValueError: bad", worker="actor[1]", traceback="Traceback: line 3\n")
    assert command_line.report(error) == 1
    assert capsys.readouterr().err == "Traceback: line 3\nerror: actor[1] raised ValueError: bad\n"
    assert command_line.report(ConfigError("no")) == 2


def test_an_interrupt_ends_with_130(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "app", interrupted)
    with pytest.raises(SystemExit) as caught:
        command_line.main()
    assert caught.value.code == 130


def test_an_interrupt_inside_a_command_ends_with_130(monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    app = typer.Typer()
    app.command("train")(interrupted)
    monkeypatch.setattr(command_line, "app", app)
    monkeypatch.setattr(sys, "argv", ["rlinf"])
    with pytest.raises(SystemExit) as caught:
        command_line.main()
    assert caught.value.code == 130


def test_the_list_as_json_has_a_record_per_plugin():
    listed = json.loads(in_process("list", "engine", "--json"))
    assert {"kind", "name", "summary", "distribution", "version", "status", "reason"} == set(listed[0])
    assert ("local", "rlinf-core", "ok") in [(p["name"], p["distribution"], p["status"]) for p in listed]


def test_the_piped_list_is_tab_separated():
    line = next(line for line in in_process("list", "engines").splitlines() if "\tlocal\t" in line)
    assert line.split("\t")[0] == "engines"


def test_show_tells_settings_with_defaults_and_comments():
    shown = json.loads(in_process("show", "engines", "local", "--json"))
    assert shown["target"] == "rlinf_core.builtin.engines.local:LocalEngine"
    assert shown["config"]
    assert all(item["doc"] for item in shown["config"])
    assert all("default" in item for item in shown["config"])


def test_check_prints_each_check_and_its_outcome():
    output = in_process("check", "engines", "inline")
    assert "passed   check_engines_call: A host starts" in output
    assert output.splitlines()[-1] == "engines inline: 14 of 14 checks passed or skipped"


@pytest.mark.parametrize(("python", "apart"), [(None, False), (Path("/there/bin/python"), True)])
def test_check_uses_the_environment_of_a_simulator_where_there_is_one(monkeypatch, python, apart):
    checked = []
    monkeypatch.setattr("rlinf_core.isolation.interpreter", lambda spec: python)
    monkeypatch.setattr("rlinf_core.testing.checks.run_checks", lambda subject: checked.append(subject) or [])
    in_process("check", "simulators", "gymnasium", "id=Reacher-v5")
    in_process("check", "engines", "inline")
    assert [subject.isolated for subject in checked] == [apart, False]


def test_check_refuses_unknown_settings():
    done = rlinf("plugins", "check", "datasets", "sort_digits", "nonsense=1")
    assert done.returncode == 2
    assert "has no setting 'nonsense'" in done.stderr


def test_new_writes_a_package_and_says_what_comes_next(tmp_path):
    output = in_process("new", "reward", "brevity", "--path", str(tmp_path))
    made = tmp_path / "rlinf-reward-brevity"
    assert f"pip install -e {made}" in output
    assert (made / "rlinf_reward_brevity" / "reward.py").exists()
