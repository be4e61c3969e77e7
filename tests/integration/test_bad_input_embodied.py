"""Mistakes of a user who trains robots: one clear line, exit code 2, and a folder that can be used again."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

POLE = ("--simulator=gymnasium", "simulator.id=InvertedPendulum-v5")
REACH = ("--simulator=metaworld", "simulator.task=reach-v3")
TINY = ("trackers=[tensorboard]", "train.steps=1", "train.prompts_per_step=2", "eval.samples=2")
QUICK = (*TINY, "simulator.max_episode_steps=3", "mode=collocated")
Train = Callable[..., Any]


def refused(done: Any, *parts: str) -> None:
    """The command ended with one error that holds the parts, in this order."""
    assert done.code == 2, done.err
    assert "Traceback" not in done.out + done.err
    assert done.err.count("error: ") == 1
    assert re.search(".*".join(re.escape(part) for part in parts), done.error, re.DOTALL), done.err


@pytest.fixture
def train(command: Callable[..., Any], tmp_path: Path) -> Train:
    """Runs in this process with the inline engine, into `tmp_path/run`."""
    base = ("train", "--backend=fsdp", "--engine=inline", "--ranks=1", f"--output={tmp_path / 'run'}")

    def run(*args: str, model: str = "mlp_policy", algo: str = "ppo") -> Any:
        return command(*base, f"--model={model}", f"--algo={algo}", *args)

    return run


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("simulator.id=Reecher-v5",), ("no environment 'Reecher-v5'", "Reacher-v5", "simulator.imports")),
        (
            ("simulator.kwargs={reset_nois: 1}",),
            ("takes no 'reset_nois'", "Did you mean 'reset_noise_scale'"),
        ),
        (("simulator.imports=[no_such_module]",), ("simulator.imports (gymnasium)", "'no_such_module'")),
    ],
)
def test_what_gymnasium_does_not_have_comes_with_near_names(
    train: Train, args: tuple[str, ...], says: tuple[str, ...]
) -> None:
    refused(train(*POLE, *args), *says)


def test_an_unknown_task_of_metaworld_comes_with_near_names(train: Train) -> None:
    refused(train(*REACH, "simulator.task=reach"), "no task 'reach'", "near names: reach-v3")


def test_a_simulator_that_is_not_installed_is_told_before_anything_starts(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLINF_ENVIRONMENTS", str(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "robosuite", None)
    monkeypatch.setattr("importlib.util.find_spec", _without("robosuite"))
    line = "rlinf plugins install robosuite --isolated"
    refused(train("--simulator=robosuite"), "lacks robosuite", line)
    refused(train("--simulator=robosuite", "env_pool.isolated=always"), "no environment of its own", line)
    refused(train("--simulator=robosuite", "env_pool.isolated=never"), line, "env_pool.isolated=auto")
    (tmp_path / "none" / "robosuite").mkdir(parents=True)
    refused(train("--simulator=robosuite"), "is unfinished", line)
    assert not (tmp_path / "run").exists()


def _without(missing: str) -> Callable[..., Any]:
    import importlib.util

    find = importlib.util.find_spec
    return lambda name, *rest: None if name == missing else find(name, *rest)


@pytest.mark.parametrize(
    ("model", "simulator", "says"),
    [
        ("openvla", POLE, ("model openvla needs pictures",)),
        (
            "openvla",
            (*REACH, "simulator.images=true", "simulator.cameras=[corner,topview]"),
            ("model.camera",),
        ),
        ("pi0", REACH, ("model pi0",)),
        ("pi0", ("--simulator=gymnasium", "simulator.id=CartPole-v1"), ("model pi0", "discrete")),
    ],
)
def test_a_model_and_a_simulator_that_do_not_fit_are_told_what_is_missing(
    train: Train, model: str, simulator: tuple[str, ...], says: tuple[str, ...]
) -> None:
    refused(train(*simulator, "model.preset=tiny", *TINY, model=model), *says)


def test_an_instruction_that_nobody_gives_does_not_block_the_folder(train: Train, tmp_path: Path) -> None:
    args = (*POLE, "simulator.images=true", "model.preset=tiny", *QUICK)
    refused(train(*args, model="openvla"), "needs an instruction", "model.instruction")
    left = {entry.name for entry in tmp_path.glob("run/*")}  # nothing, unless a log says something
    assert not left - {"config.yaml", "plan.yaml", "logs"}
    assert train(*POLE, *QUICK).code == 0


def test_a_machine_that_cannot_draw_is_told_before_anything_is_played(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")
    for simulator in (POLE, REACH):
        refused(train(*simulator, "simulator.images=true"), "MUJOCO_GL=disable", "egl or osmesa")
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    refused(train(*POLE, "simulator.images=true"), "tried EGL and OSMesa", "apt-get install")


@pytest.mark.parametrize("name", ["metaworld", "tabletop", "gymnasium"])
def test_a_variable_that_keeps_mujoco_from_loading_is_named(name: str) -> None:
    setting = {"gymnasium": ["id=InvertedPendulum-v5"]}.get(name, [])
    program = [sys.executable, "-c", "from rlinf_core.cli.app import main; main()"]
    done = subprocess.run(
        [*program, "plugins", "check", "simulators", name, *setting],
        env={"MUJOCO_GL": "nonsense", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: MUJOCO_GL=nonsense")
    assert done.stderr.count("\n") == 1


def test_checks_of_a_simulator_with_wrong_settings_end_at_once(command: Callable[..., Any]) -> None:
    refused(command("plugins", "check", "simulators", "gymnasium", "id=Reecher-v5"), "Reacher-v5")
    refused(command("plugins", "check", "simulators", "gymnasium", "it=Reacher-v5"), "no setting 'it'")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("schedule.stages=9",), ("schedule.stages", "9 groups of 4 environments")),
        (("env_pool.processes=9",), ("env_pool.processes", "choose 4 or fewer")),
        (("train.prompts_per_step=0",), ("train.prompts_per_step", "must be 1 or more")),
        (("env_pool.isolated=always",), ("'gymnasium' has no environment of its own", "isolated=auto")),
        (("--data=sort_digits",), ("data: an embodied task does not use it",)),
        (("--model=hf_vlm",), ("'hf_vlm' is for text tasks", "simulator 'gymnasium'")),
        (("warm_start.steps=5",), ("warm_start.demonstrations", "rlinf demos record")),
        (("warm_start.steps=5", "warm_start.demonstrations=/nowhere"), ("/nowhere", "no such folder")),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_starts(
    train: Train, tmp_path: Path, args: tuple[str, ...], says: tuple[str, ...]
) -> None:
    refused(train(*POLE, "train.prompts_per_step=4", *args), *says)
    assert not (tmp_path / "run").exists()


def test_statistics_that_a_preset_does_not_have_are_refused(train: Train) -> None:
    done = train(*POLE, "model.preset=tiny", "model.unnorm_key=bridge_orig", model="openvla")
    refused(done, "model.unnorm_key (openvla)", "'bridge_orig'", "a preset has no statistics")


def test_one_sample_a_group_is_refused(train: Train) -> None:
    refused(train(*POLE, "algo.group_size=1", algo="grpo"), "algo.group_size", "use 2 or more")


def test_a_text_task_refuses_a_policy_that_acts(command: Callable[..., Any]) -> None:
    done = command("train", "--model=mlp_policy", "--algo=grpo", "--data=sort_digits", "--reward=exact")
    refused(done, "'mlp_policy' is for embodied tasks", "no simulator is named")


def test_demonstrations_of_another_simulator_are_refused(
    train: Train, command: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "demos"
    record = ("demos", "record", "--simulator=metaworld", "simulator.task=reach-v3", f"--output={folder}")
    refused(
        command(*record, "--episodes=1", "--envs=1", "simulator.max_episode_steps=1"), "the expert succeeded"
    )
    assert not folder.exists()
    assert command(*record, "--episodes=1", "--envs=1").code == 0
    warm = ("warm_start.steps=1", f"warm_start.demonstrations={folder}")
    refused(train(*POLE, *QUICK, *warm), "warm_start.demonstrations", "shape [39], the simulator shows [4]")
    pictures = ("simulator.images=true", "simulator.cameras=[corner]")
    refused(train(*REACH, *QUICK, *pictures, *warm), "holds no 'images/corner'", "it holds state")


def test_a_simulator_without_an_expert_records_nothing(command: Callable[..., Any], tmp_path: Path) -> None:
    done = command("demos", "record", "--simulator=gymnasium", "simulator.id=Reacher-v5", f"-o={tmp_path}")
    refused(done, "it has no expert", "metaworld")
