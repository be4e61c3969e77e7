"""Host processes from the driver's side: how they are held, called, watched and ended.

An engine makes a `HostProcess` and a socket that is connected to it, and gets a `Host` from `LinkedHost`:
calls and stages in order, back-pressure by bytes, cancelling, spans, and an error that names the worker
when the process dies. Where others start the processes, they come in through a `Door`.
"""

from rlinf_core.hosting.door import Door, Ticket
from rlinf_core.hosting.ending import AT_EXIT_S, end_hosts, refuse_doubled_names
from rlinf_core.hosting.link import LinkedHost, LinkLimits
from rlinf_core.hosting.process import ChildProcess, HostProcess

__all__ = [
    "AT_EXIT_S",
    "ChildProcess",
    "Door",
    "HostProcess",
    "LinkLimits",
    "LinkedHost",
    "Ticket",
    "end_hosts",
    "refuse_doubled_names",
]
