"""What the tab key offers, asked as bash and zsh ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_core.cli.completing import MOST_FOLDERS, run_folders
from rlinf_core.plugins import plugins

PROGRAM = (
    "import atexit, sys; from rlinf_core.cli.app import main\n"
    "heavy = ('torch', 'numpy', 'transformers', 'ray')\n"
    "atexit.register(lambda: print(*[m for m in heavy if m in sys.modules], file=sys.stderr))\n"
    "sys.argv = ['rlinf']; main()"
)


def asked(folder: Path, **environment: str) -> str:
    """What the command prints; nothing heavy may be imported for it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )
    assert done.stderr.strip() == ""
    return done.stdout


def bash(folder: Path, *words: str) -> list[str]:
    """The last word is the one that is begun; bash parts words at `=`."""
    protocol = {"_RLINF_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words)}
    return asked(folder, **protocol, COMP_CWORD=str(len(words) - 1)).split()


def zsh(folder: Path, line: str) -> str:
    return asked(folder, _RLINF_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with runs of different depths, and folders that are none."""
    for name in ("runs/first", "runs/second", "old/2025/third", "deep/a/b/c"):
        made = tmp_path / name
        (made / "checkpoints" / "step_20").mkdir(parents=True)
        (made / "checkpoints" / "step_3").mkdir()
        (made / "checkpoints" / "latest").symlink_to("step_20")
        (made / "batches" / "step_19").mkdir(parents=True)
        (made / "config.yaml").write_text("")
        (made / "plan.yaml").write_text("")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.yaml").write_text("")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        ("--algo", "algorithms"),
        ("--model", "models"),
        ("--data", "datasets"),
        ("--reward", "rewards"),
        ("--simulator", "simulators"),
        ("--backend", "backends"),
        ("--rollout", "rollouts"),
        ("--engine", "engines"),
    ],
)
def test_flags_that_name_plugins_offer_those_that_are_installed(tmp_path: Path, flag: str, kind: str) -> None:
    assert bash(tmp_path, "rlinf", "train", flag, "") == plugins().names(kind)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["trai"], ["train"]),
        (["train", "--algo", "gr"], ["grpo"]),
        (["train", "--algo", "=", "gr"], ["grpo"]),
        (["sft", "--recipe", "quick"], ["quickstart"]),
        (["train", "--mode", "co"], ["collocated"]),
        (["train", "mode", "=", "hy"], ["hybrid"]),
        (["train", "train.skip_gradient_free", "="], ["true", "false"]),
        (
            ["train", "seed=1", "checkpoint.keep"],
            [f"checkpoint.keep{end}=" for end in ("", "_best", "_batches")],
        ),
        (["train", "--algo", "ppo", "algo.value_cl"], ["algo.value_clip="]),
        (["train", "algo.value_cl"], []),
        (["train", "--algo", "no_such", "algo.value_cl"], []),
        (["demos", "record", "--simulator", "meta"], ["metaworld"]),
        (["plugins", "list", "sim"], ["simulators"]),
        (["plugins", "show", "simulators", "table"], ["tabletop"]),
        (["plugins", "show", "sim", "table"], ["tabletop"]),
        (["plugins", "show", "table"], ["tabletop"]),
    ],
)
def test_what_bash_is_offered(tmp_path: Path, words: list[str], offered: list[str]) -> None:
    assert bash(tmp_path, "rlinf", *words) == offered


@pytest.mark.parametrize("command", ["export", "eval", "compare", "replay", "report", "watch", "scale"])
def test_commands_about_a_run_offer_folders_of_runs(runs: Path, command: str) -> None:
    there = ["old/2025/third", "runs/first", "runs/second"]
    assert [name for name in bash(runs, "rlinf", command, "") if name in there] == there
    assert bash(runs, "rlinf", command, "runs/f") == ["runs/first"]


def test_resuming_offers_runs_and_steps_are_those_of_the_run(runs: Path) -> None:
    assert bash(runs, "rlinf", "train", "--resume", "runs/s") == ["runs/second"]
    assert bash(runs, "rlinf", "export", "runs/first", "--step", "") == ["3", "20", "latest"]
    assert bash(runs, "rlinf", "export", "nowhere", "--step", "") == []
    assert bash(runs, "rlinf", "replay", "runs/first", "") == ["19"]


def test_zsh_gets_names_and_where_there_are_none_files(runs: Path) -> None:
    assert zsh(runs, "rlinf train --algo gr") == "_arguments '*: :((\"grpo\"))'\n"
    assert zsh(runs, "rlinf train mode=hy") == "_arguments '*: :((\"mode=hybrid\"))'\n"
    assert zsh(runs, "rlinf report runs/f") == "_arguments '*: :((\"runs/first\"))'\n"
    assert zsh(runs, "rlinf train --config ") == "_files\n"
    assert '"replay":"' in zsh(runs, "rlinf rep")


def test_folders_are_offered_as_they_are_typed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(runs))
    monkeypatch.chdir(runs / "notes")
    assert run_folders("~/runs/f") == ["~/runs/first"]
    assert run_folders(f"{runs}/runs/s") == [f"{runs}/runs/second"]
    assert run_folders("../old/") == ["../old/2025/third"]
    assert run_folders("../deep/a/") == ["../deep/a/b/c"]
    assert run_folders("/no/such/folder/") == []


def test_a_large_tree_is_not_searched_to_its_end(tmp_path: Path) -> None:
    wide = [tmp_path / f"{first:02}" / f"{second:02}" for first in range(50) for second in range(50)]
    assert len(wide) > MOST_FOLDERS
    for path in (*wide, tmp_path / "first"):
        path.mkdir(parents=True)
    for path in (tmp_path / "first", wide[-1]):
        for name in ("config.yaml", "plan.yaml"):
            (path / name).write_text("")
    assert run_folders(f"{tmp_path}/") == [f"{tmp_path}/first"]
    assert run_folders(f"{tmp_path}/49/") == [str(wide[-1])]


def test_the_script_that_bash_is_given_works_in_bash(runs: Path, tmp_path: Path) -> None:
    """Set up as a user does, then asked as readline asks."""
    program = tmp_path / "bin" / "rlinf"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom rlinf_core.cli.app import run\nrun()\n")
    program.chmod(0o755)
    lines = [
        "rlinf --install-completion >/dev/null; . ~/.bash_completions/rlinf.sh",
        "COMP_WORDS=(rlinf replay runs/f) COMP_CWORD=2; _rlinf_completion rlinf; echo ${COMPREPLY[@]}",
        "COMP_WORDS=(rlinf train --algo gr) COMP_CWORD=3; _rlinf_completion rlinf; echo ${COMPREPLY[@]}",
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        cwd=runs,
        env={**os.environ, "HOME": str(tmp_path), "PATH": f"{program.parent}:{os.environ['PATH']}"},
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["runs/first", "grpo"], done.stderr
