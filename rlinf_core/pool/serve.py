"""The program of a pool's process: steps its share of the environments, in its own Python environment."""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api.instructions import instruction_bytes
from rlinf_core.api.simulator import Observation, Simulator, Transition
from rlinf_core.errors import PluginError
from rlinf_core.isolation.child import run, told
from rlinf_core.isolation.values import decode, find
from rlinf_core.isolation.wire import Message, Wire
from rlinf_core.pool.memory import FINAL, INSTRUCTION, SHOWN, Arrays, Layout
from rlinf_core.pool.protocol import APART, DONE, NONE, SAME, STEP, VERSION, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Share:
    """Some of a pool's environments, in one simulator."""

    def __init__(self, said: Any, descriptor: int) -> None:  # Any: JSON values
        self.first, self.last = said["share"]
        self.name: str = said["name"]
        self.descriptor = descriptor
        self.arrays: Arrays = {}
        self.chunk = 0
        self.simulator: Simulator = find(said["target"])(
            decode(said["config"]), self.last - self.first, said["seed"]
        )

    def hello(self) -> dict[str, Any]:  # Any: JSON values
        """What the pool needs to know."""
        simulator = self.simulator
        spaces = {name: vars(space) for name, space in simulator.observation_space.items()}
        return {
            "version": VERSION,
            "python": sys.version.split()[0],
            "action_space": vars(simulator.action_space),
            "observation_space": spaces,
            "max_episode_steps": int(simulator.max_episode_steps),
            "restarts": bool(simulator.restarts),
        }

    def handle(self, message: Message) -> tuple[Any, bytes]:  # Any: JSON values
        """What is answered. Anything may be raised."""
        said, simulator = message.said, self.simulator
        if message.kind == Kind.STEP:
            chunk, simulator.auto_reset = STEP.unpack(message.raw)
            return None, self._step(chunk)
        simulator.auto_reset = said.get("auto_reset", simulator.auto_reset)
        if message.kind == Kind.RESET:
            return None, DONE.pack(self._show(SHOWN, simulator.reset(said["seeds"])), NONE, False)
        if message.kind == Kind.RESTART:
            shown = simulator.restart({int(n): seed for n, seed in said["seeds"].items()})
            return None, DONE.pack(self._show(SHOWN, shown), NONE, False)
        return self._call(said["method"], said.get("arguments", ()), message.raw)

    def divide(self, layout: Layout) -> None:
        """The memory is like this from now on."""
        self.arrays = {
            name: array[self.first : self.last]
            for name, array in layout.arrays(mmap.mmap(self.descriptor, layout.size)).items()
        }

    def _step(self, chunk: int) -> bytes:
        outcome = self.simulator.step(self.arrays["actions"][:, :chunk].copy())
        for name in ("rewards", "terminated", "truncated", "executed"):
            self._put(f"{name}_NC", self.arrays[name][:, :chunk], getattr(outcome, f"{name}_NC"))
        self._put("success_N", self.arrays["success"], outcome.success_N)
        if outcome.success_NC is not None:
            self._put("success_NC", self.arrays["success_NC"][:, :chunk], outcome.success_NC)
        told = self._show(SHOWN, outcome.observation)
        return DONE.pack(told, self._show_final(outcome), outcome.success_NC is not None)

    def _show_final(self, outcome: Transition) -> int:
        if outcome.final_observation is None:
            return NONE
        if outcome.final_observation is outcome.observation:
            return SAME
        self._show(FINAL, outcome.final_observation)
        return APART

    def _show(self, when: str, shown: Observation) -> bool:
        """Write an observation into the memory; whether it has instructions."""
        parts: dict[str, NDArray[Any]] = {f"images/{name}": image for name, image in shown.images.items()}
        if shown.state is not None:
            parts["state"] = shown.state
        if set(parts) != set(self.simulator.observation_space):
            raise PluginError(
                f"simulator {self.name}: it shows {', '.join(sorted(parts)) or 'nothing'}; by its spaces "
                f"{', '.join(sorted(self.simulator.observation_space))}"
            )
        for name, value in parts.items():
            self._put(name, self.arrays[when + name], value)
        if shown.instruction is None:
            return False
        self.arrays[when + INSTRUCTION][...] = instruction_bytes(shown.instruction)
        return True

    def _put(self, name: str, place: NDArray[Any], value: NDArray[Any]) -> None:
        if value.shape != place.shape or value.dtype != place.dtype:
            raise PluginError(
                f"simulator {self.name}: {name} is {value.dtype} of shape {value.shape}; by its spaces "
                f"{place.dtype} of shape {place.shape}"
            )
        place[...] = value

    def _call(self, method: str, arguments: Any, raw: bytes) -> tuple[Any, bytes]:  # Any: JSON values
        simulator = self.simulator
        if method == "save_state":
            return None, simulator.save_state()
        if method == "load_state":
            return None, DONE.pack(self._show(SHOWN, simulator.load_state(raw)), NONE, False)
        answer = getattr(simulator, method)(*arguments)
        if isinstance(answer, np.ndarray):
            return {"shape": answer.shape, "type": str(answer.dtype)}, answer.tobytes()
        return answer, b""


def main(arguments: list[str]) -> None:
    """Serve the pool at the other end of a socket."""
    run(arguments, _serve)


def _serve(wire: Wire, memory: int) -> None:
    share = _start(wire, memory)
    if share is None:
        return
    while (message := wire.receive()).kind != Kind.CLOSE:
        if message.kind == Kind.LAYOUT:
            share.divide(Layout(**message.said))
        elif not _handle(wire, share, message):
            return
    share.simulator.close()


def _start(wire: Wire, memory: int) -> Share | None:
    said = wire.receive().said
    try:
        if said["version"] != VERSION:
            raise PluginError(f"a pool of protocol {said['version']} started a process of protocol {VERSION}")
        share = Share(said, memory)
        wire.send(Kind.HELLO, share.hello())
    except Exception as error:  # the border of a process: the pool raises it
        _tell(wire, error, "the start")
        return None
    return share


def _handle(wire: Wire, share: Share, message: Message) -> bool:
    """False after an error that leaves the simulator in an unknown state."""
    where = message.said["method"] if message.kind == Kind.CALL else Kind(message.kind).name.lower()
    try:
        said, raw = share.handle(message)
    except Exception as error:  # the border of a process: the pool raises or logs it
        _tell(wire, error, where)
        return message.kind == Kind.CALL
    wire.send(Kind.ANSWER if message.kind == Kind.CALL else Kind.DONE, said, raw)
    return True


def _tell(wire: Wire, error: Exception, where: str) -> None:
    wire.send(Kind.ERROR, told(error, where))


if __name__ == "__main__":
    main(sys.argv[1:])
