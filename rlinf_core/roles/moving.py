"""What ranks that train together do when their number changes: give what they have, take what they need."""

from __future__ import annotations

import gc
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from rlinf_core.api import TrainerContext
from rlinf_core.comm.handover import Laid, Outbox, fill
from rlinf_core.comm.reading import Mark
from rlinf_core.comm.transport import Standpoint
from rlinf_core.roles.saving import random_state, set_random_state
from rlinf_core.roles.setup import build_backend
from rlinf_core.worker import Worker, on_host

if TYPE_CHECKING:
    from rlinf_core.api import Algorithm, Block, Held, Model, Resize, Trainer, Transfer
    from rlinf_core.config.schema import RunConfig


@dataclass(frozen=True)
class Place:
    """Of a rank among others, before there is a meeting point."""

    rank: int
    size: int


@dataclass(frozen=True)
class Told:
    """What a rank says of itself before a change."""

    facts: Mapping[str, Any]  # Any: what the backend's trainers tell
    blocks: tuple[Block, ...]
    standpoint: Standpoint
    mark: Mark


@dataclass(frozen=True)
class Given:
    """What a rank gives to others, beside the tensors that it lays down."""

    laid: Laid
    facts: Mapping[str, Any]
    algorithm: Mapping[str, Any]  # Any: JSON values
    generators: Mapping[str, Any]  # states of random generators


class Background:
    """Something that is made in a thread of its own."""

    def __init__(self, make: Callable[[], None]) -> None:
        self._make = make
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="moving", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """Whether it is made. Raises what making it has failed by."""
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait(self) -> None:
        """Until it is made. Raises what making it has failed by."""
        self.join()
        self.done()

    def join(self) -> None:
        """Until it is made, or has failed."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._make()
        except BaseException as err:  # the border of a thread: `done` and `wait` raise it
            self._error = err


class Moving:
    """One rank's part in a change of the number of ranks, from the first preparation to its end."""

    def __init__(self, resize: Resize | None) -> None:
        self.resize = resize  # None on a rank that leaves
        self.outbox: Outbox | None = None
        self.held: Held = {}  # what this rank has before
        self._jobs = [Background(resize.allocate)] if resize is not None else []

    def make_room(self, given: Sequence[Transfer], readers: Collection[int], held: Held) -> None:
        """For what is given away, but to those that read it where it lies."""

        def make() -> None:
            self.outbox = Outbox(given, readers, held)

        self._jobs.append(Background(make))

    def ready(self) -> bool:
        """Whether everything is made. Raises what has failed."""
        return all(job.done() for job in self._jobs)

    def wait(self) -> None:
        """Until everything is made. Raises what has failed."""
        for job in self._jobs:
            job.wait()

    def close(self) -> None:
        """Give back what is not used any more."""
        if self.outbox is not None:
            self.outbox.close()


class Movable(Worker, ABC):
    """A rank of what trains, whose number can change. The driver calls these methods in their order."""

    config: RunConfig
    trainer: Trainer
    algorithm: Algorithm
    _moving: Moving | None = None

    @abstractmethod
    def settle_in(self, trainer: Trainer) -> None:
        """Be this rank with this trainer."""

    @on_host
    def tell(self) -> Told:
        """What this rank has."""
        held = self.trainer.held()
        here = Standpoint.here(self.context.device)
        return Told(self.trainer.facts(), tuple(held), here, Mark.here())

    @on_host
    def prepare_to_move(self, place: Place) -> tuple[Block, ...]:
        """Begin to prepare for being another rank; says what it will have."""
        resize = self.trainer.resize(self.trainer_context(place))
        self._moving = Moving(resize)
        return resize.blocks

    def prepare_to_join(self, model: Model, facts: Mapping[str, Any], **settings: Any) -> None:
        """The same on a rank that has no trainer yet. `settings` are those of `TrainBackend.join`."""
        place = Place(self.context.rank, self.context.world_size)
        resize = build_backend(self.config).join(
            model, self.config.lora, self.trainer_context(place), facts, **settings
        )
        self._moving = Moving(resize)

    @on_host
    def wanted(self) -> tuple[tuple[Block, ...], Standpoint]:
        """What a rank that joins will have, and where it sits."""
        resize = self._present.resize
        return (() if resize is None else resize.blocks), Standpoint.here(self.context.device)

    @on_host
    def reads(self, marks: Mapping[int, Mark]) -> set[int]:
        """Those of the processes with these marks whose memory this rank can read."""
        return {number for number, mark in marks.items() if mark.readable()}

    @on_host
    def make_room(self, given: Sequence[Transfer], readers: Collection[int]) -> None:
        """Begin to make room for what this rank gives to others than `readers`."""
        if self._moving is None:
            self._moving = Moving(None)
        self._moving.make_room(given, readers, self.trainer.held())

    @on_host
    def ready_to_move(self) -> bool:
        """Whether all preparations have ended. Raises what has failed."""
        return self._present.ready()

    @on_host
    def stay(self) -> None:
        """The change will not come."""
        moving, self._moving = self._moving, None
        if moving is not None:
            moving.close()

    def give(self, far: Iterable[int]) -> Given:
        """Show or lay down what others take; those in `far` are on other machines. What is shown stays as it
        is until `has_moved`."""
        moving = self._present
        moving.wait()
        self.trainer.onload()
        moving.held = self.trainer.held()
        laid = Laid(None) if moving.outbox is None else moving.outbox.lay(moving.held, far)
        generators = generator_states(self.context.device)
        return Given(laid, self.trainer.facts(), self.algorithm.state_dict(), generators)

    def enter(self, place: Place, master: str) -> None:
        """Meet the ranks of afterwards, all of which do so at once."""
        moving = self._present
        moving.wait()
        self.context = replace(self.context, rank=place.rank, world_size=place.size, master=master)
        os.environ.update(self.context.rendezvous())
        if moving.resize is None:
            raise RuntimeError("enter before prepare_to_move")
        self._entered = moving.resize.enter()

    def take(self, transfers: Sequence[Transfer], laid: Mapping[int, Laid], given: Given) -> None:
        """Fill what this rank has from now on, and be it; `given` is that of the former rank of this number,
        or where there was none of rank 0, without generators."""
        moving = self._present
        if moving.resize is None:
            raise RuntimeError("take before enter")
        fill(self._entered, transfers, laid, moving.held)
        self._entered = {}
        self.settle_in(moving.resize.finish(given.facts))
        self.algorithm.load_state_dict(dict(given.algorithm))
        if given.generators:
            restore_generators(given.generators, self.context.device)

    @on_host
    def has_moved(self) -> None:
        """Everybody has what it needs: what was before may go."""
        self.stay()
        gc.unfreeze()
        gc.collect()  # modules refer to themselves
        gc.freeze()

    @property
    def _present(self) -> Moving:
        if self._moving is None:
            raise RuntimeError(f"{self.context.name} has not prepared to move")
        return self._moving

    def trainer_context(self, place: Place) -> TrainerContext:
        """For a trainer there."""
        return TrainerContext(
            rank=place.rank,
            world_size=place.size,
            device=self.context.device,
            seed=self.config.seed,
            total_steps=self.optimizer_steps(),
        )

    def optimizer_steps(self) -> int:
        """Of the whole run."""
        train = self.config.train
        return train.steps * train.mini_batches * train.update_epochs


def generator_states(device: str) -> dict[str, Any]:  # Any: as the libraries have them
    """Of the generators of torch, Python and numpy in this process."""
    states = {**random_state(), "torch": torch.get_rng_state()}
    if device.startswith("cuda"):
        states["device"] = torch.cuda.get_rng_state(device)
    return states


def restore_generators(states: Mapping[str, Any], device: str) -> None:  # Any: as above
    """Go on with these."""
    torch.set_rng_state(states["torch"])
    set_random_state(states)
    if "device" in states:
        torch.cuda.set_rng_state(states["device"], device)
