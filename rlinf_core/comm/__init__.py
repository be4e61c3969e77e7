"""What passes between workers: streams, bounded channels and the messages that carry them."""

from rlinf_core.comm.stream import Stream

__all__ = ["Stream"]
