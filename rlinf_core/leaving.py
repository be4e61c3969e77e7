"""The end of a process, without the time that an interpreter takes to dismantle large libraries."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process from its main thread as `sys.exit` does: threads end, then what was registered to
    run at exit runs, and all that was printed is written. Only what is left is not taken apart."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does first
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BrokenPipeError:  # nobody reads what was printed
        code = code or 1
    finally:
        os._exit(code)
