"""What a pool and its processes say to each other.

Observations, actions and outcomes are not in it: they lie in shared memory (`memory.py`). Both sides import
this file, so it knows the standard library and nothing else.
"""

from __future__ import annotations

import struct
from enum import IntEnum

VERSION = 2  # of everything in this file and in memory.py
STEP = struct.Struct("<IB")  # actions of the chunk, whether environments start again by themselves
DONE = struct.Struct("<BBB")  # whether there are instructions, which final observation, success by action
NONE, SAME, APART = range(3)  # the final observation: none, what is shown now, or another one


class Kind(IntEnum):
    """Of messages."""

    START = 1  # to the process: which simulator
    HELLO = 2  # from it: what the simulator shows and takes
    LAYOUT = 3  # to the process: how the shared memory is divided
    RESET = 4
    RESTART = 5
    STEP = 6
    DONE = 7  # from the process: the outcome lies in shared memory
    CALL = 8  # to the process: any other method
    ANSWER = 9
    ERROR = 10  # from the process, instead of any answer
    CLOSE = 11
