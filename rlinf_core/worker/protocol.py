"""The messages between a driver and a host process, by kind."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """What a message says; in brackets its content. `call` in the header says which call it is about.

    RESULT and ERROR carry a note: what was done when, as `pack_spans` writes it.
    """

    CREATE = 1  # to the host: build a worker [WorkerSpec]
    CALL = 2  # to the host: [worker, method, args, kwargs]
    STAGE = 3  # to the host: [worker, method, args, kwargs]
    INPUT = 4  # to the host: a chunk for a stage [list]
    INPUT_END = 5  # to the host: no more chunks [None]
    CANCEL = 6  # to the host: end the stage [None]
    STOP = 7  # to the host: close the workers and exit [None]
    HELLO = 8  # to the driver: ready; a RESULT of call 0 [None, 0]
    STARTED = 9  # to the driver: the stage runs and takes its input [None]
    OUTPUT = 10  # to the driver: a chunk from a stage [list]
    RESULT = 11  # to the driver: the end of a call or a stage [value, seconds]
    ERROR = 12  # to the driver: [WorkerError, RlinfError or None]
    TAKEN = 13  # both ways: so many bytes of a stage's chunks were taken [int]
    DROP = 14  # to the host: close and forget a worker [name]
    PING = 15  # to the host: answer at once, whatever the workers do []
    PONG = 16  # to the driver: the answer []
