"""A host process on some node of the cluster, as the driver holds it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from rlinf_backend_ray.keeper import Ending, Launched
from rlinf_core.comm.network import unheard_s
from rlinf_core.errors import ConfigError, RlinfError, WorkerDied
from rlinf_core.hosting import HostProcess, LinkedHost, LinkLimits

_ANSWER_S = 1.5  # that a keeper gets to tell how its process ended
_MEET_S = 10.0


class RayProcess(HostProcess):
    """Its keeper ends it and tells how it ended; where the keeper is gone too, Ray tells."""

    def __init__(
        self, name: str, keeper: Any, launched: Launched, sock: socket.socket, silence_s: float
    ) -> None:  # Any: an actor's handle
        self.keeper = keeper
        self.pid = launched.pid
        self.node = launched.node
        self.title = f"process {name} (pid {self.pid}, node {self.node})"
        self._socket = sock
        self._silence_s = silence_s
        self._finishing = threading.Lock()
        self._over = threading.Event()
        keeper.watch.remote().future().add_done_callback(lambda _: self._over.set())
        self._ending: Ending | None = None

    def ended(self) -> bool:
        """Whether it has ended, or its node is lost."""
        return self._over.is_set() or self._is_silent()

    def ask_to_end(self) -> None:
        """SIGTERM."""
        with contextlib.suppress(RayError):  # it has ended with its keeper
            self.keeper.ask_to_end.remote()

    def finish(self) -> str:
        """Kill what is left, with its keeper, and tell how it ended."""
        with self._finishing:  # the driver's thread and the receiver's come here at once
            if self._ending is None:
                self._ending = self._ask_for_the_end()
                with contextlib.suppress(RayError, ValueError):  # it is gone already
                    ray.kill(self.keeper)
                self._over.set()
            return self._ending.how

    def tail(self) -> str:
        """The last lines that it printed, where its node could still tell."""
        return "" if self._ending is None else self._ending.tail

    def _is_silent(self) -> bool:
        return unheard_s(self._socket) > self._silence_s

    def _ask_for_the_end(self) -> Ending:
        if self._is_silent():
            silence = f"which has not answered for {unheard_s(self._socket):.1f} s"
            return Ending(f"was lost with its node {self.node}, {silence}", "")
        try:
            ending: Ending = ray.get(self.keeper.finish.remote(), timeout=_ANSWER_S)
            return ending
        except GetTimeoutError:
            return Ending(f"was lost: node {self.node} does not tell what became of it", "")
        except RayActorError as error:
            return Ending(f"was lost with its keeper: {reason(error)}", "")
        except RayError as error:
            return Ending(f"ended; Ray says: {reason(error)}", "")


class RayHost(LinkedHost):
    """A linked host whose process has a keeper."""

    process: RayProcess

    def __init__(self, name: str, sock: socket.socket, process: RayProcess, limits: LinkLimits) -> None:
        super().__init__(name, sock, process, limits)

    def meeting_point(self) -> str:
        """A free port of its node."""
        try:
            return str(ray.get(self.process.keeper.meeting_point.remote(), timeout=_MEET_S))
        except RayError as error:
            raise WorkerDied(
                f"node {self.process.node} of process {self.name} does not answer: {reason(error)}",
                worker=self.name,
            ) from error


def reason(error: RayError) -> str:
    """What Ray says, without the lines that name its internals; of a traceback its last line."""
    text, _, traceback = str(error).partition("Traceback (most recent call last):")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("class_name:", "actor_id:", "namespace:", "pid:"))]
    return " ".join([*said[:4], *traceback.strip().splitlines()[-1:]]) or type(error).__name__


def own_error(error: RayError) -> RlinfError | None:
    """The error of ours that a keeper raised, if it did."""
    cause = error.cause if isinstance(error, RayTaskError) else None
    return cause if isinstance(cause, ConfigError) else None
