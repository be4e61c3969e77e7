"""The pool's side of its shared memory: an anonymous file that its processes inherit, and that may grow."""

from __future__ import annotations

import mmap
import os

from rlinf_core.comm.segments import new_descriptor
from rlinf_core.pool.memory import Arrays, Layout


class SharedMemory:
    """Nothing of it is left behind, whoever is killed."""

    def __init__(self) -> None:
        self.descriptor = new_descriptor()
        self.arrays: Arrays = {}
        self.layout: Layout | None = None

    def divide(self, layout: Layout) -> None:
        """Make room for it; arrays that others still hold go on showing what they showed."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.descriptor, 0, layout.size)  # full memory is an error here, not a signal
        else:
            os.ftruncate(self.descriptor, layout.size)
        self.layout = layout
        self.arrays = layout.arrays(mmap.mmap(self.descriptor, layout.size))

    def close(self) -> None:
        """Arrays that were handed out stay."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
