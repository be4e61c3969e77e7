"""A simulator whose environments are stepped by several processes.

Axes: N environments, C actions of a chunk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api.instructions import instruction_texts
from rlinf_core.api.simulator import Observation, Simulator, Space, Transition
from rlinf_core.comm.routing import interval_sizes
from rlinf_core.errors import PluginError
from rlinf_core.isolation.values import encode
from rlinf_core.pool.memory import FINAL, INSTRUCTION, OUTCOMES, SHOWN, Layout
from rlinf_core.pool.part import Lives, Part
from rlinf_core.pool.parts import Parts
from rlinf_core.pool.protocol import APART, DONE, NONE, STEP, Kind
from rlinf_core.pool.shared import SharedMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlinf_core.isolation.program import Program


class SimulatorPool(Simulator):
    """N environments over processes. What `step`, `reset` and `restart` return are views of shared memory,
    good until the next of these calls; rewards, flags and successes are copies.

    A process that dies, hangs or raises in an episode is replaced. Its environments are `Transition.lost_N`,
    once, and rest until they are started again. Raises `PluginError` beyond `lives.limit`.
    """

    concurrent = True

    def __init__(
        self,
        config: Any,
        num_envs: int,
        seed: int,
        *,
        name: str,
        target: str,
        program: Program,
        processes: int = 1,
        timeout_s: float = 120.0,
        lives: Lives | None = None,
    ) -> None:
        super().__init__(config, num_envs, seed)
        self.name = name
        self.lives = lives or Lives()
        self._memory = SharedMemory()
        self._chunk: int | None = None  # of the actions that were sent and not received
        self._texts: tuple[bytes, list[str]] = (b"", [])
        self._instructed = False
        said = {"name": name, "target": target, "config": encode(config, "simulator"), "seed": seed}
        start = partial(
            Part, program=program, memory=self._memory.descriptor, lives=self.lives, timeout_s=timeout_s
        )
        sizes = interval_sizes(num_envs, max(1, min(processes, num_envs)))
        try:
            self._parts = Parts(said, sizes, start)
        except BaseException:
            self._memory.close()
            raise
        try:
            self._parts.wait(self._parts.all_ready)
            self._adopt()
        except BaseException:
            self.close()
            raise

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Waits for processes that start."""
        self._begin(Kind.RESET, dict(enumerate(seeds)))
        return self.begun()

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        """Waits for processes that start, of these environments."""
        self._begin(Kind.RESTART, seeds)
        return self.begun()

    def begin(self, seeds: Mapping[int, int]) -> None:
        """Waits for processes that start, of these environments, and no longer."""
        self._begin(Kind.RESTART if self.restarts else Kind.RESET, seeds)

    def begun(self) -> Observation:
        """Once all processes have answered."""
        self._parts.wait(self._parts.all_idle)
        for part in self._parts.all:
            self._read(part)
        return self._observation(SHOWN)

    def step(self, actions: NDArray[Any]) -> Transition:
        """`send` and `receive`."""
        self.send(actions)
        return self.receive()

    def send(self, actions: NDArray[Any]) -> None:
        """The processes begin; environments that were not started since their process was rest."""
        self._make_room(actions)
        self._chunk = actions.shape[1]
        self._memory.arrays["actions"][:, : self._chunk] = actions
        for part in self._parts.all:
            part.reply = None
            if part.ready and part.begun:
                part.say(Kind.STEP, raw=STEP.pack(self._chunk, self.auto_reset))

    def receive(self) -> Transition:
        """The outcome of what was sent."""
        if self._chunk is None:
            raise PluginError(f"simulator {self.name}: receive comes after send")
        self._parts.wait(self._parts.all_idle)
        chunk, self._chunk = self._chunk, None
        arrays = {name: self._memory.arrays[name][:, :chunk].copy() for name in (*OUTCOMES, "success_NC")}
        success_N = self._memory.arrays["success"].copy()
        finals, by_action, lost_N = [], False, np.zeros(self.num_envs, dtype=bool)
        for part in self._parts.all:
            rows = slice(part.first, part.last)
            final, stated = self._read(part)
            finals.append(final)
            by_action |= stated
            if part.reply is None:
                success_N[rows] = False
            for name, array in arrays.items():
                if part.reply is None or (name == "success_NC" and not stated):
                    array[rows] = 0
            lost_N[rows] = part.lost
            part.lost[:] = False
        return Transition(
            self._observation(SHOWN),
            **{f"{name}_NC": arrays[name] for name in OUTCOMES},
            success_N=success_N,
            final_observation=self._final(finals),
            success_NC=arrays["success_NC"] if by_action else None,
            lost_N=lost_N if lost_N.any() else None,
        )

    def ready(self) -> bool:
        """Whether no answer is awaited."""
        self._parts.collect(0.0)
        return self._parts.all_idle()

    def waits_on(self) -> list[int]:
        """Of all processes."""
        return self._parts.descriptors()

    def absent(self) -> NDArray[np.bool_] | None:
        """Those whose process is starting."""
        self._parts.collect(0.0)
        if self._parts.all_ready():
            return None
        return np.concatenate([np.full(part.last - part.first, not part.ready) for part in self._parts.all])

    def process_ids(self) -> list[int]:
        """Of the worker processes."""
        return [part.process.pid for part in self._parts.all]

    def tasks(self) -> list[str]:
        """As the first process says."""
        names: list[str] = self._parts.call("tasks", self._parts.all[:1])[0].said
        return names

    def expert(self, speed_N: Sequence[float]) -> NDArray[np.float32]:
        """Of all environments."""
        speeds = [float(speed) for speed in speed_N]
        return self._parts.gather("expert", lambda part: [speeds[part.first : part.last]])

    def render(self) -> NDArray[np.uint8]:
        """Of all environments."""
        return self._parts.gather("render", lambda part: [])

    def render_some(self, envs: Sequence[int]) -> NDArray[np.uint8]:
        """By the processes of these; black for a process that has died."""
        found: dict[int, NDArray[np.uint8]] = {}
        for part in self._parts.all:
            own = [n for n in envs if part.first <= n < part.last]
            if own:
                found |= dict(zip(own, self._parts.pictures(part, own), strict=False))
        black = np.zeros_like(next(iter(found.values()))) if found else np.zeros((64, 64, 3), dtype=np.uint8)
        return np.stack([found.get(n, black) for n in envs])

    def save_state(self) -> bytes:
        """That of every process, behind a line that says which environments each is of."""
        states = [answer.raw for answer in self._parts.call("save_state", self._parts.all)]
        shares = [
            [part.first, part.last, len(state)] for part, state in zip(self._parts.all, states, strict=True)
        ]
        return json.dumps(shares).encode() + b"\n" + b"".join(states)

    def load_state(self, state: bytes) -> Observation:
        """Of a pool with the same number of processes."""
        line, _, rest = state.partition(b"\n")
        shares = _shares(line, len(rest))
        if [share[:2] for share in shares] != [[part.first, part.last] for part in self._parts.all]:
            raise PluginError(
                f"simulator {self.name}: this state is not of {self.num_envs} environments over "
                f"{len(self._parts.all)} processes"
            )
        for part, (_, _, size) in zip(self._parts.all, shares, strict=True):
            self._parts.call("load_state", [part], raw=rest[:size])
            part.begun = True
            part.lost[:] = False
            rest = rest[size:]
        return self.begun()

    def offload(self) -> None:
        """In every process."""
        self._parts.call("offload", self._parts.all, lasting=False)

    def onload(self) -> None:
        """In every process."""
        self._parts.call("onload", self._parts.all, lasting=False)

    def close(self) -> None:
        """The processes have ended when this returns."""
        self._parts.close()
        self._memory.close()

    def _adopt(self) -> None:
        """What the simulator says of itself; all processes say the same."""
        hello: dict[str, Any] = self._parts.all[0].hello or {}
        self.action_space = _space(hello["action_space"])
        self.observation_space = {name: _space(said) for name, said in hello["observation_space"].items()}
        self.max_episode_steps = hello["max_episode_steps"]
        self.restarts = hello["restarts"]
        discrete = self.action_space.n is not None
        self._divide(
            Layout(
                num_envs=self.num_envs,
                shown={name: space.shape for name, space in self.observation_space.items()},
                action=() if discrete else self.action_space.shape,
                action_type="int64" if discrete else "float32",
                chunk=1,
            )
        )

    def _divide(self, layout: Layout) -> None:
        self._memory.divide(layout)
        for part in self._parts.all:
            part.divide(layout)

    def _make_room(self, actions: NDArray[Any]) -> None:
        layout = self._memory.layout
        chunk, kind = actions.shape[1], str(actions.dtype)
        if layout is not None and (chunk > layout.chunk or kind != layout.action_type):
            self._divide(replace(layout, chunk=max(chunk, layout.chunk), action_type=kind))

    def _begin(self, kind: Kind, seeds: Mapping[int, int]) -> None:
        for part in self._parts.all:
            own = {n - part.first: int(seed) for n, seed in seeds.items() if part.first <= n < part.last}
            if own:
                told = own if kind == Kind.RESTART else [own[n] for n in sorted(own)]
                self._parts.tell(part, kind, {"auto_reset": self.auto_reset, "seeds": told})
                part.lost[list(own)] = False

    def _read(self, part: Part) -> tuple[int, bool]:
        """Which final observation a process gave, and whether success by action."""
        if part.reply is None:
            return NONE, False
        instructed, final, stated = DONE.unpack(part.reply.raw)
        self._instructed = bool(instructed)
        return final, bool(stated)

    def _observation(self, when: str) -> Observation:
        arrays = self._memory.arrays
        images = {
            name.removeprefix("images/"): arrays[when + name]
            for name in self.observation_space
            if name.startswith("images/")
        }
        texts = self._instructions(when) if self._instructed else None
        return Observation(arrays.get(f"{when}state"), images, texts)

    def _instructions(self, when: str) -> list[str]:
        """They seldom change, so the last ones are kept."""
        told = self._memory.arrays[when + INSTRUCTION]
        if when != SHOWN:
            return instruction_texts(told)
        raw = told.tobytes()
        if raw != self._texts[0]:
            self._texts = (raw, instruction_texts(told))
        return list(self._texts[1])

    def _final(self, finals: Sequence[int]) -> Observation | None:
        """What environments showed before they were started again."""
        if all(final == NONE for final in finals):
            return None
        if APART not in finals:
            return self._observation(SHOWN)
        for part, final in zip(self._parts.all, finals, strict=True):
            if final != APART:
                rows = slice(part.first, part.last)
                for name in (*self.observation_space, INSTRUCTION):
                    self._memory.arrays[FINAL + name][rows] = self._memory.arrays[SHOWN + name][rows]
        return self._observation(FINAL)


def _space(said: Mapping[str, Any]) -> Space:  # Any: JSON values
    return Space(**{**said, "shape": tuple(said["shape"])})


def _shares(line: bytes, size: int) -> list[list[int]]:
    """Of a saved state; none if it is not one."""
    try:
        shares: list[list[int]] = json.loads(line)
        return shares if sum(share[2] for share in shares) == size else []
    except (ValueError, TypeError, IndexError, KeyError):
        return []
