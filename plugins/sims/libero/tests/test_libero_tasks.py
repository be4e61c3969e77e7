"""Which tasks and initial states are meant, what they say, and what is refused; LIBERO is not needed."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rlinf_sim_libero.config import LiberoConfig
from rlinf_sim_libero.installation import Installation, installation
from rlinf_sim_libero.scene import axis_angle
from rlinf_sim_libero.simulator import LiberoSimulator
from rlinf_sim_libero.tasks import Task, chosen, initial_states

from rlinf_core.errors import ConfigError

NAMES = ["KITCHEN_SCENE10_close_the_drawer", "STUDY_SCENE3_pick_up_the_book", "open_the_top_drawer"]


@pytest.fixture
def found(tmp_path: Path) -> Installation:
    """A distribution with three tasks, whose states are kept as numbers, by torch, and not at all."""
    folder = tmp_path / "libero"
    (folder / "benchmark").mkdir(parents=True)
    (folder / "benchmark" / "libero_suite_task_map.py").write_text(
        f"libero_task_map = {{'libero_90': {NAMES}}}"
    )
    states = folder / "init_files" / "libero_90"
    states.mkdir(parents=True)
    np.savez(states / f"{NAMES[0]}.pruned_init.npz", states=np.arange(10.0).reshape(5, 2))
    _archive(states / f"{NAMES[1]}.pruned_init", np.arange(6.0).reshape(3, 2))
    return Installation("pretended", folder, tmp_path / "assets")


def _archive(path: Path, value: Any) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))


def test_tasks_are_chosen_by_number_name_and_sentence(found: Installation) -> None:
    assert [task.name for task in chosen(found, "libero_90", "all")] == NAMES
    assert [task.number for task in chosen(found, "libero_90", "2, 0,2")] == [2, 0]
    assert chosen(found, "libero_90", NAMES[1]) == chosen(found, "libero_90", "pick up the book")
    with pytest.raises(ConfigError, match=r"no task 'open_the_drawer'; near names: open_the_top_drawer"):
        chosen(found, "libero_90", "open_the_drawer")
    with pytest.raises(ConfigError, match=r"libero_90 has no task '3'; use all, a number from 0 to 2"):
        chosen(found, "libero_90", "3")


def test_a_policy_is_told_the_task_without_the_place_it_is_in() -> None:
    told = [Task("libero_90", 0, name).instruction for name in NAMES]
    assert told == ["close the drawer", "pick up the book", "open the top drawer"]


def test_initial_states_are_read_without_torch_and_split_by_number(found: Installation) -> None:
    tasks = chosen(found, "libero_90", "all")
    np.testing.assert_array_equal(initial_states(found, tasks[0], "1-2,4")[:, 0], [2.0, 4.0, 8.0])
    np.testing.assert_array_equal(initial_states(found, tasks[1], "all"), np.arange(6.0).reshape(3, 2))
    with pytest.raises(ConfigError, match=r"has 3 initial states, from 0 to 2, and so none of the number 3"):
        initial_states(found, tasks[1], "1-3")
    for wrong in ("x", "4-2", "", "1,,2"):
        with pytest.raises(ConfigError, match=r"simulator.init_states \(libero\): .*such as 0-39"):
            initial_states(found, tasks[0], wrong)
    with pytest.raises(ConfigError, match=r"pretended has no initial states of open_the_top_drawer"):
        initial_states(found, tasks[2], "all")


def test_a_file_of_initial_states_executes_nothing(found: Installation) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("exit 1",)

    task = chosen(found, "libero_90", "2")[0]
    _archive(found.states / "libero_90" / f"{task.name}.pruned_init", Evil())
    with pytest.raises(ConfigError, match=r"asks for (posix|nt).system, and not for numbers alone"):
        initial_states(found, task, "all")


def test_an_orientation_is_its_axis_times_its_angle() -> None:
    half = np.sqrt(0.5)
    np.testing.assert_allclose(axis_angle(np.array([half, 0, half, 0])), [0, np.pi / 2, 0])
    np.testing.assert_allclose(axis_angle(np.array([-half, 0, -half, 0])), [0, -1.5 * np.pi, 0])  # sign kept
    np.testing.assert_array_equal(axis_angle(np.array([1.0, 0, 0, 0])), np.zeros(3))


def test_limits_are_those_of_published_evaluations() -> None:
    from rlinf_sim_libero.config import STEP_LIMITS

    assert STEP_LIMITS == {
        "libero_spatial": 220,
        "libero_object": 280,
        "libero_goal": 300,
        "libero_10": 520,
        "libero_90": 400,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suite": "libero_spacial"}, r"no suite 'libero_spacial'; near names: libero_spatial"),
        (
            {"suite": "x"},
            r"no suite 'x'; all: libero_spatial, libero_object, libero_goal, libero_10, libero_90",
        ),
        ({"scenes": 0}, r"simulator.scenes \(libero\): 0: must be 1 or more"),
        ({"settle_steps": -1}, r"simulator.settle_steps \(libero\): -1"),
        ({"state": False, "cameras": ()}, r"the policy would see nothing"),
        ({"image_size": 4}, r"simulator.image_size \(libero\): 4: must lie between 8 and 1024"),
        ({"view": "sideways"}, r"simulator.view \(libero\): 'sideways': use rotated, upright, raw"),
        ({"cameras": ("agentview", "agentview")}, r"agentview, agentview: a name is there twice"),
    ],
)
def test_what_does_not_exist_is_refused_by_its_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LiberoConfig(**options)


def test_without_libero_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    installation.cache_clear()
    with pytest.raises(
        ConfigError, match=r"not installed here; .* `rlinf plugins install libero --isolated`"
    ):
        LiberoSimulator(LiberoConfig(), 1, 0)
    installation.cache_clear()


def test_without_assets_it_is_said_which_folder_lacks_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libero" / "libero" / "bddl_files").mkdir(parents=True)
    (tmp_path / "libero" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    installation.cache_clear()
    with pytest.raises(ConfigError, match=rf"simulator.assets \(libero\): .*{tmp_path}/mine does not hold"):
        installation(str(tmp_path / "mine"))
    installation.cache_clear()


def test_where_nothing_can_draw_it_is_said_before_a_model_is_compiled(
    found: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlinf_sim_libero.simulator.installation", lambda assets: found)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(ConfigError, match=r"simulator.cameras \(libero\): no OpenGL .*install libosmesa6"):
        LiberoSimulator(LiberoConfig("libero_90", task=0), 1, 0)


def test_numbers_of_torch_are_read_alike_whatever_numpy_wrote_them() -> None:
    from rlinf_sim_libero.tasks import _Numbers

    text = pickle.dumps(np.arange(3.0), protocol=2)
    for module in (b"numpy.core.multiarray", b"numpy._core.multiarray"):
        renamed = text.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        renamed = renamed.replace(b"numpy.core.multiarray", module)
        np.testing.assert_array_equal(_Numbers(io.BytesIO(renamed)).load(), np.arange(3.0))
