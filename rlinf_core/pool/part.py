"""Some of a pool's environments and the process that steps them, which is replaced when it dies or hangs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlinf_core.errors import PluginError
from rlinf_core.isolation.child import retold
from rlinf_core.isolation.process import ChildProcess, quoted
from rlinf_core.isolation.program import Program
from rlinf_core.isolation.wire import Message
from rlinf_core.pool.memory import Layout
from rlinf_core.pool.protocol import Kind

SERVER = "rlinf_core.pool.serve"
START_S = 600.0  # that a process may take until its simulator is there
STARTS = 3  # of a process, before a pool is given up that has never been whole
_END_S = 1.0  # that a process whose socket is closed may take to end
_CLOSE_S = 2.0

_log = logging.getLogger(__name__)


@dataclass
class Lives:
    """How often processes may be started again; shared by all pools of a worker."""

    limit: int = 50
    used: int = 0

    def spend(self, what: str, printed: str) -> None:
        """One more. Raises `PluginError` beyond the limit."""
        if self.used >= self.limit:
            raise PluginError(
                f"{what}; no process is started again after {self.limit} times "
                f"(env_pool.restarts={self.limit}){quoted(printed)}"
            )
        self.used += 1
        _log.warning("%s; starting it again (%d of %d)%s", what, self.used, self.limit, quoted(printed))


class Part:
    """Environments `first` up to `last` of a pool. `lost` are those whose episode ended with it."""

    def __init__(
        self, said: Mapping[str, Any], program: Program, memory: int, lives: Lives, timeout_s: float
    ) -> None:
        self.said = said  # Any: JSON values, for the process
        self.first, self.last = said["share"]
        self.timeout_s = timeout_s
        self.lost = np.zeros(self.last - self.first, dtype=bool)
        self.hello: dict[str, Any] | None = None
        self.reply: Message | None = None
        self._program = program
        self._memory = memory
        self._lives = lives
        self._layout: Layout | None = None
        self.begun = False  # its environments were started
        self.deadline: float | None = None  # of what is awaited
        self._vain = 0  # starts that came to nothing before the pool was whole
        self.process = self._start()

    @property
    def ready(self) -> bool:
        """Its process has a simulator."""
        return self.hello is not None

    @property
    def busy(self) -> bool:
        """An answer is awaited."""
        return self.ready and self.deadline is not None

    def say(self, kind: Kind, said: Any = None, raw: bytes = b"") -> bool:  # Any: JSON values
        """Send what will be answered; False if the process turns out to be gone, and another one starts."""
        self.reply = None
        try:
            self.process.wire.send(kind, said, raw)
        except OSError:
            self._lose(None)
            return False
        if kind in (Kind.RESET, Kind.RESTART):
            self.begun = True
        self.deadline = time.monotonic() + self.timeout_s
        return True

    def divide(self, layout: Layout) -> None:
        """The memory is like this from now on, also for processes to come."""
        self._layout = layout
        if self.ready:
            self._tell_layout()

    def take(self) -> None:
        """What has arrived. Raises what the simulator says that a user should read."""
        try:
            messages = self.process.arrived()
        except (EOFError, OSError):
            self._lose(None)
            return
        for message in messages:
            self.deadline = None
            if message.kind == Kind.HELLO:
                self.hello = message.said
                if self._layout is not None:
                    self._tell_layout()
            elif message.kind == Kind.ERROR:
                self._fail(message.said)
                return
            else:
                self.reply = message

    def watch(self, now: float) -> None:
        """Give up a process that has not answered in time."""
        if self.deadline is not None and now >= self.deadline:
            limit = f"{self.timeout_s:g} s (env_pool.timeout_s)" if self.ready else f"{START_S:g} s"
            self._lose(f"gave no answer for {limit} and was killed")

    def close(self) -> None:
        """Let the process end; `end` waits for it."""
        with contextlib.suppress(OSError):  # it has ended
            self.process.wire.send(Kind.CLOSE)

    def end(self) -> None:
        """The process has ended when this returns."""
        self.process.kill(_CLOSE_S if self.ready else 0.0)

    def _start(self) -> ChildProcess:
        self.hello, self.reply, self.begun = None, None, False
        label = f"{self.said['name']} {self.first}-{self.last - 1}"
        try:
            process = ChildProcess(self._program, SERVER, self._memory, label)
        except OSError as err:
            raise PluginError(f"simulator {self.said['name']}: {self._program.python}: {err}") from err
        self.deadline = time.monotonic() + START_S
        with contextlib.suppress(OSError):  # it has ended, which `take` will meet
            process.wire.send(Kind.START, self.said)
        return process

    def _tell_layout(self) -> None:
        if self._layout is not None:
            with contextlib.suppress(OSError):  # it has ended, which `take` will meet
                self.process.wire.send(Kind.LAYOUT, self._layout.to_json())

    def _fail(self, error: Mapping[str, Any]) -> None:
        """Raise an error, or start again after one that tells of an episode alone."""
        where, message, name = error["where"], error["message"], self.said["name"]
        known = retold(dict(error))
        if known is not None:
            raise known
        if where in ("step", "reset", "restart"):
            self._lose(f"raised in {where}:\n{error['traceback'].rstrip()}\n")
            return
        _log.error("simulator %s, in its process:\n%s", name, error["traceback"].rstrip())
        raise PluginError(
            f"simulator {name}: {where} failed in its process ({self._program.python}): {message}"
        )

    def _lose(self, why: str | None) -> None:
        """The process is gone, or has to go."""
        ending = self.process.kill(_END_S if why is None else 0.0)
        what = (
            f"simulator {self.said['name']}: the process of environments {self.first} to {self.last - 1} "
            f"(pid {self.process.pid}) {why or ending}"
        )
        self.deadline = None  # nothing comes any more, also where no other process is started
        self._vain += self._layout is None
        printed = self.process.tail()
        if self._vain == STARTS:
            raise PluginError(f"{what} before it had begun, for the {STARTS}rd time{quoted(printed)}")
        self._lives.spend(what, printed)
        self.lost |= self.begun
        self.process = self._start()
