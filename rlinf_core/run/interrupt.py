"""Ctrl-C: first let the step that runs finish and be saved, then stop at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupt:
    """While active, the first SIGINT sets `requested`; if nobody reacts within `patience_s`, or on a
    second SIGINT, KeyboardInterrupt is raised in the main thread."""

    def __init__(self, patience_s: float = 1.2) -> None:
        self.requested = False
        self._patience_s = patience_s
        self._timer: threading.Timer | None = None
        self._expired = False  # the next SIGINT comes from the timer
        self._settled = False
        self._former: object = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._former)  # type: ignore[arg-type]

    def settle(self) -> None:
        """The run reacts to the request: it will not be ended for being slow any more."""
        self._settled = True
        if self._timer is not None:
            self._timer.cancel()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._expired:
            self._expired = False
            if self._settled:
                return
            raise KeyboardInterrupt
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        if not self._settled:
            self._timer = threading.Timer(self._patience_s, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _expire(self) -> None:
        main = threading.main_thread().ident
        if main is not None and not self._settled:
            self._expired = True
            signal.pthread_kill(main, signal.SIGINT)
