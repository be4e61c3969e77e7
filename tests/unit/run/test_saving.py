"""Checkpoints that are written while the run goes on: one at a time, and their errors are not lost."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.errors import CheckpointError, RlinfError, WorkerDied
from rlinf_core.roles.saving import Part, Staged, random_state, restore_random_state
from rlinf_core.run.checkpoint import CheckpointStore
from rlinf_core.run.saving import Saving


class Snapshot:
    """Of a trainer whose state is a text; it is written when the disk lets it."""

    def __init__(self, trainer: Trainer) -> None:
        self.text = trainer.text
        self.size = len(self.text)
        self.trainer = trainer

    def write(self, path: Path) -> list[Path]:
        assert self.trainer.disk.wait(20)
        if self.trainer.fault is not None:
            raise self.trainer.fault
        (path / "state").write_text(self.text)
        return [path / "state"]


class Trainer:
    """What a worker's part of a checkpoint asks of a trainer."""

    def __init__(self) -> None:
        self.text = "zero"
        self.disk = threading.Event()
        self.fault: BaseException | None = None
        self.blocking = False

    def snapshot(self, *, apart: bool) -> Snapshot | None:
        return None if self.blocking else Snapshot(self)

    def save(self, path: Path) -> None:
        path.mkdir()
        (path / "state").write_text(self.text)


class Crew:
    """One actor in this process."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.part: Any = None

    def stage_save(self, *, background: bool) -> dict[str, list[Staged]]:
        self.part = Part(self.trainer, 0, background=background)  # type: ignore[arg-type]
        return {"actor": [Staged(self.part.size, {"coefficient": 0.5})]}

    def write_save(self, folder: Path, listing: str) -> list[Path]:
        self.part.write(folder / "actor", folder / f"{listing}actor-0")
        return [folder / f"{listing}actor-0"]

    def check_save(self) -> None:
        self.part.check()

    def finish_save(self) -> None:
        self.part.finish()


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


@pytest.fixture
def told() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def make(tmp_path: Path, trainer: Trainer, told: list[tuple[int, str]]) -> Callable[..., Saving]:
    def made(background: bool = True) -> Saving:
        store = CheckpointStore(tmp_path, keep=2)
        crew: Any = Crew(trainer)
        return Saving(
            store, crew, background=background, told=lambda step, path: told.append((step, path.name))
        )

    return made


def text_of(root: Path) -> str:
    return (root / "latest" / "actor" / "state").read_text()


def test_training_goes_on_while_a_checkpoint_is_written_and_it_is_what_was_then(
    make: Callable[..., Saving], trainer: Trainer, told: list[tuple[int, str]], tmp_path: Path
) -> None:
    saving = make()
    trainer.text = "one"
    saving.save(1, {"note": 1})
    trainer.text = "two"
    saving.check()
    assert (saving.last_step, saving.store.latest_step(), told) == (1, None, [])
    trainer.disk.set()
    saving.finish()
    assert text_of(tmp_path) == "one"
    assert told == [(1, "step_1")]
    latest = saving.store.latest()
    assert latest is not None
    assert latest.state == {"step": 1, "algorithm": {"coefficient": 0.5}, "note": 1}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_checkpoint_becomes_the_latest_without_being_asked_for(
    make: Callable[..., Saving], trainer: Trainer, told: list[tuple[int, str]]
) -> None:
    saving = make()
    saving.save(1, {})
    trainer.disk.set()
    wait_for(lambda: saving.store.latest_step() == 1)
    wait_for(lambda: (saving.check(), told == [(1, "step_1")])[1])


def test_the_next_save_waits_for_the_one_before(
    make: Callable[..., Saving], trainer: Trainer, told: list[tuple[int, str]], tmp_path: Path
) -> None:
    saving = make()
    trainer.text = "one"
    saving.save(1, {})
    threading.Timer(0.2, trainer.disk.set).start()
    trainer.text = "two"
    saving.save(2, {})
    assert told == [(1, "step_1")]
    saving.finish()
    assert told == [(1, "step_1"), (2, "step_2")]
    assert text_of(tmp_path) == "two"


@pytest.mark.parametrize("when", ["at the next step", "at the end", "at the next save"])
def test_a_full_disk_is_told_once_in_one_line_and_the_last_good_checkpoint_stays(
    make: Callable[..., Saving], trainer: Trainer, tmp_path: Path, when: str
) -> None:
    saving = make()
    trainer.disk.set()
    trainer.text = "good"
    saving.save(1, {})
    saving.finish()
    trainer.fault = OSError(errno.ENOSPC, "No space left on device")
    saving.save(2, {})
    asked = {
        "at the next step": lambda: wait_for(lambda: saving.check() is not None),
        "at the end": saving.finish,
        "at the next save": lambda: saving.save(3, {}),
    }
    with pytest.raises(CheckpointError) as raised:
        asked[when]()
    assert str(raised.value).startswith(f"checkpoint of step 2 was not saved in {tmp_path}: cannot write")
    assert f"No space left on device; the last good one is {tmp_path.resolve()}/step_1" in str(raised.value)
    assert text_of(tmp_path) == "good"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    saving.check()
    saving.finish()
    assert saving.last_step == 1


@pytest.mark.parametrize("blocking", [False, True], ids=["snapshot", "a backend that can only save"])
def test_without_background_a_save_ends_when_all_is_durable(
    make: Callable[..., Saving], trainer: Trainer, tmp_path: Path, blocking: bool
) -> None:
    trainer.blocking = blocking
    trainer.disk.set()
    saving = make(background=False)
    trainer.text = "one"
    saving.save(1, {})
    assert (saving.store.latest_step(), text_of(tmp_path)) == (1, "one")
    assert saving.store.latest() is not None, "its sums are those of its files"


def test_a_backend_that_can_only_save_does_so_before_training_goes_on(
    make: Callable[..., Saving], trainer: Trainer, tmp_path: Path
) -> None:
    trainer.blocking, trainer.text = True, "one"
    saving = make()
    saving.save(1, {})
    trainer.text = "two"
    saving.finish()
    assert text_of(tmp_path) == "one"


def test_after_an_error_of_the_run_what_is_whole_becomes_a_checkpoint_and_what_is_not_is_removed(
    make: Callable[..., Saving], trainer: Trainer, tmp_path: Path
) -> None:
    saving = make()
    saving.save(1, {})
    assert saving.abandon() is None
    assert saving.store.latest_step() is None
    assert list(tmp_path.iterdir()) == []
    trainer.disk.set()
    saving.save(2, {})
    saving.crew.finish_save()
    assert saving.abandon() is None
    assert saving.store.latest_step() == 2


def test_the_death_of_a_worker_that_writes_is_told_as_it_is(
    make: Callable[..., Saving], trainer: Trainer
) -> None:
    saving = make()
    saving.save(1, {})

    def died() -> None:
        raise WorkerDied("actor[0] was killed by SIGKILL", worker="actor[0]")

    saving.crew.check_save = died  # type: ignore[method-assign]
    with pytest.raises(WorkerDied, match="SIGKILL"):
        saving.check()
    assert saving.last_step is None


def test_the_generators_of_python_and_numpy_go_on_where_they_were(tmp_path: Path) -> None:
    import json
    import random

    import numpy as np

    random.gauss(0, 1)  # keeps a second number
    (tmp_path / "process_3.json").write_text(json.dumps(random_state()))
    expected = [random.gauss(0, 1), random.random(), *np.random.standard_normal(3)]
    random.seed(5)
    np.random.seed(5)
    restore_random_state(tmp_path, 3)
    assert [random.gauss(0, 1), random.random(), *np.random.standard_normal(3)] == expected
    (tmp_path / "process_4.json").write_text('{"python": [3, [1, 2], null], "numpy": []}')
    with pytest.raises(RlinfError, match=r"process_4\.json holds no state of random generators"):
        restore_random_state(tmp_path, 4)


def wait_for(true: Callable[[], bool]) -> None:
    """Within ten seconds."""
    pause = threading.Event()
    for _ in range(1000):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it takes too long")
