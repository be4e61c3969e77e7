"""Want of memory in a run, in one message: what was resident, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_core.config.less_memory import suggestions
from rlinf_core.errors import OutOfMemoryError, RlinfError, WorkerError
from rlinf_core.worker.memory import RAN_OUT, resident, tells_of_exhaustion

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig


def explained(error: WorkerError | MemoryError, config: RunConfig) -> RlinfError:
    """The error with settings that would help, where memory ran out; otherwise as it is."""
    if isinstance(error, MemoryError):
        text = f"the driver {RAN_OUT}: {error or type(error).__name__}; {resident({})}"
    elif not tells_of_exhaustion(str(error)):
        return error
    else:
        text = str(error)
    component = text.partition("[")[0].rpartition(" ")[2]
    helps = "\n".join(f"  {setting}" for setting in suggestions(config, component))
    return OutOfMemoryError(f"{text}\nThese settings take less, the first ones most of it:\n{helps}")
