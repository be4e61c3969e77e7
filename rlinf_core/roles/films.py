"""Films episodes while they run, for people. Axes: N environments, C actions of a chunk, F frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlinf_core.api import Transition
from rlinf_core.api.instructions import instruction_texts
from rlinf_core.types import EpisodeRequest, Trajectory

if TYPE_CHECKING:
    from rlinf_core.api import Simulator

    Frames = NDArray[np.uint8]  # [F, H, W, 3]

FRAMES, FACTS = ".frames", ".film.npz"  # endings of a film's files: raw pictures, and what is known of them


class Film:
    """What was seen of one episode: the first frame before any action, then one after each action, or after
    each decision where the simulator cannot rest inside of one. Frames go to the disk as they come."""

    def __init__(self, request: EpisodeRequest) -> None:
        self.request = request
        self.path = Path(request.film + FRAMES)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        self._shape: tuple[int, ...] = ()
        self._rewards: list[float] = []  # that led to each frame
        self._decisions: list[int] = []  # which was made at each frame

    def add(self, frame: NDArray[np.uint8], reward: float, decided: int) -> None:
        """One more frame; `decided` decisions have been executed since the one before. A dead process
        shows a black one of any size."""
        if self._shape and frame.shape != self._shape:
            frame = np.zeros(self._shape, dtype=np.uint8)
        with self.path.open("ab") as file:
            file.write(np.ascontiguousarray(frame).data)
        self._shape = frame.shape
        self._rewards.append(reward)
        self._decisions.append((self._decisions[-1] if self._decisions else 0) + decided)

    def save(self, episode: Trajectory, count: int) -> None:
        """How it ended, for whoever makes a video of the first `count` frames."""
        told = episode.observations.get("instruction")
        np.savez(
            self.request.film + FACTS,
            shape=np.array([count, *self._shape]),
            rewards=np.array(self._rewards[:count]),
            decisions=np.minimum(self._decisions[:count], len(episode.actions) - 1),
            ended=np.array(ending(episode)),
            instruction=np.array("" if told is None else instruction_texts(told[:1])[0]),
            row=np.array([episode.group, episode.replica]),
        )

    def discard(self) -> None:
        """There is no such episode."""
        self.path.unlink()


def ending(episode: Trajectory) -> str:
    """How an episode ended, in a word or two."""
    if episode.success:
        return "success"
    return "time limit" if episode.truncated else "failure"


class Films:
    """Stands between a group of environments and its simulator: while an episode is filmed, chunks are
    executed action by action, so that each can be seen. Where none is, nothing is different."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._running: dict[int, Film] = {}  # environment -> its film
        self._new: list[int] = []
        self._held: NDArray[Any] | None = None

    def begin(self, n: int, request: EpisodeRequest) -> None:
        """Environment n has started an episode."""
        self.leave(n)
        if request.film:
            self._running[n] = Film(request)
            self._new.append(n)

    def leave(self, n: int) -> None:
        """Environment n has lost its episode."""
        film = self._running.pop(n, None)
        if film is not None:
            film.discard()

    def send(self, actions: NDArray[Any]) -> None:
        """As the simulator's."""
        new, self._new = [n for n in self._new if n in self._running], []
        for n, frame in zip(new, self._drawn(new), strict=True):
            self._running[n].add(frame, 0.0, 0)
        if self._running:
            self._held = actions
        else:
            self._simulator.send(actions)

    def receive(self) -> Transition:
        """As the simulator's."""
        actions, self._held = self._held, None
        if actions is None:
            return self._simulator.receive()
        length = actions.shape[1]
        step = 1 if self._simulator.restarts else length
        parts = []
        for first in range(0, length, step):
            parts.append(self._simulator.step(actions[:, first : first + step]))
            self._look(parts[-1], last=first + step >= length)
        return parts[0] if len(parts) == 1 else merged(parts)

    def end(self, episodes: Sequence[Trajectory]) -> None:
        """These episodes have ended."""
        ended = {(episode.group, episode.replica): episode for episode in episodes}
        for n, film in list(self._running.items()):
            episode = ended.get((film.request.group, film.request.replica))
            if episode is not None:
                del self._running[n]
                film.save(episode, self._count(episode))

    def _count(self, episode: Trajectory) -> int:
        """Frames of an episode. What is seen after an automatic reset is of another one."""
        if not self._simulator.restarts:
            return len(episode.actions)
        return 1 + (len(episode.actions) if episode.executed is None else int(episode.executed.sum()))

    def _look(self, transition: Transition, last: bool) -> None:
        """After an action, the last one of its chunk or not."""
        acted = set(np.flatnonzero(transition.executed_NC.any(1)).tolist())
        seen = [n for n in self._running if n in acted]
        paid_N = transition.rewards_NC.sum(1)
        for n, frame in zip(seen, self._drawn(seen), strict=True):
            self._running[n].add(frame, float(paid_N[n]), int(last))

    def _drawn(self, envs: list[int]) -> Frames | list[Any]:
        return self._simulator.render_some(envs) if envs else []


def merged(parts: Sequence[Transition]) -> Transition:
    """Of a simulator without automatic reset: what one chunk of all these actions would have returned."""
    stated = any(part.success_NC is not None for part in parts)
    lost = [part.lost_N for part in parts if part.lost_N is not None]
    ended = any(part.final_observation is not None for part in parts)
    shown = parts[-1].observation

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts], axis=1)

    successes = [
        np.zeros_like(part.executed_NC) if part.success_NC is None else part.success_NC for part in parts
    ]
    return Transition(
        shown,
        rewards_NC=joined("rewards_NC"),
        terminated_NC=joined("terminated_NC"),
        truncated_NC=joined("truncated_NC"),
        executed_NC=joined("executed_NC"),
        success_N=np.logical_or.reduce([part.success_N for part in parts]),
        final_observation=shown if ended else None,
        success_NC=np.concatenate(successes, axis=1) if stated else None,
        lost_N=np.logical_or.reduce(lost) if lost else None,
    )
