"""The parent's handle of one scoring process: start, submit, receive, kill."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any

from rlinf_core.api.reward import RewardItem, RewardResult
from rlinf_core.errors import RewardError

if TYPE_CHECKING:
    from rlinf_core.roles.reward_process import Message

START_DEADLINE_S = 120.0  # a reward may import a large library
MESSAGE_S = 2.0  # that a message may take from its beginning to its end, at least
EXIT_GRACE_S = 0.5  # between the end of a connection and the exit code of its process


@dataclass
class Job:
    """Items on their way, by position; `attempts` counts those that ended with a dead process."""

    indices: list[int]
    attempts: int = 0


class ScoringProcess:
    """One scoring process. `deadline` is when its present work must have brought a message."""

    def __init__(self, setup: Any) -> None:  # Any: what `reward_process.main` unpacks
        self.connection, theirs = Pipe()
        # -P: files of the current directory must not shadow installed modules.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "rlinf_core.roles.reward_process", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a reward prints must not mix with the output of commands
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,
        )
        theirs.close()
        self.connection.send_bytes(pickle.dumps(setup, protocol=5))
        self.ready = False
        self.job: Job | None = None
        self.columns: list[list[RewardResult]] = []
        self.since = time.monotonic()
        self.deadline = self.since + START_DEADLINE_S

    def confirm_ready(self) -> None:
        """Take the first message; raises `RewardError` unless the rewards were loaded."""
        try:
            kind, payload = self.receive()
        except (EOFError, OSError) as err:
            raise RewardError(
                f"a scoring process ended with {self.kill(EXIT_GRACE_S)} while starting"
            ) from err
        if kind == "failed":
            self.kill()
            raise RewardError(payload)
        self.ready = True
        self.release()

    def submit(self, job: Job, items: Sequence[RewardItem], timeout_s: float) -> bool:
        """Send a batch; False if the process is dead."""
        payload = pickle.dumps([items[i] for i in job.indices], protocol=5)
        try:
            self.connection.send_bytes(payload)
        except OSError:
            return False
        self.job, self.columns = job, []
        self.restart_clock(timeout_s)
        return True

    def receive(self) -> Message:
        """The next message, which has begun to come; raises EOFError or OSError if the process is dead, or
        sends what is none. A message that does not come to its end costs the process its life."""
        left = min(START_DEADLINE_S, max(MESSAGE_S, self.deadline - time.monotonic()))
        watch = threading.Timer(left, self._popen.kill)
        watch.daemon = True
        watch.start()
        try:
            content = self.connection.recv_bytes()
            message: Message = pickle.loads(content)  # noqa: S301 - between a run and its own scoring process
        except (EOFError, OSError):
            raise
        except Exception as err:  # whatever unpickling makes of it
            raise OSError(f"a scoring process sent what is no message: {err}") from err
        finally:
            watch.cancel()
        return message

    def restart_clock(self, timeout_s: float) -> float:
        """Allow `timeout_s` from now; returns the seconds since the clock was last restarted."""
        now = time.monotonic()
        elapsed, self.since, self.deadline = now - self.since, now, now + timeout_s
        return elapsed

    def release(self) -> None:
        """The work is done; nothing is expected until the next batch."""
        self.job, self.deadline = None, math.inf

    def kill(self, grace_s: float = 0.0) -> str:
        """Kill the process with everything it started; returns how it ended, in words."""
        self.connection.close()
        try:
            code = self._popen.wait(grace_s)
            ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            ending = "a kill"
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:  # the whole group has ended by itself
            return ending
        self._popen.wait()
        return ending
