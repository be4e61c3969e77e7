"""Memory of another process, read where it lies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from rlinf_core.comm import reading
from rlinf_core.comm.reading import Mark, read_into

HOLDER = """
import sys, torch
from rlinf_core.comm.reading import Mark
values = torch.arange(6, dtype=torch.float64)
mark = Mark.here()
print(mark.process, mark.address, mark.value.hex(), values.data_ptr(), flush=True)
sys.stdin.read()
"""


@contextmanager
def holder() -> Iterator[tuple[Mark, int]]:
    """A process with six numbers: its mark, and where they lie."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        number, address, value, values = process.stdout.readline().split()
        yield Mark(int(number), int(address), bytes.fromhex(value)), int(values)
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="needs process_vm_readv")
def test_numbers_of_another_process_are_read_until_it_ends() -> None:
    with holder() as (mark, address):
        assert mark.process != os.getpid()
        assert mark.readable()
        found = torch.zeros(3, dtype=torch.float64)
        read_into(found, mark.process, address + 8)
        assert found.tolist() == [1.0, 2.0, 3.0]
    assert not mark.readable()
    with pytest.raises(OSError, match=f"24 bytes cannot be read in the memory of process {mark.process}"):
        read_into(found, mark.process, address)


def test_a_process_that_only_has_the_same_number_is_not_read() -> None:
    here = Mark.here()
    assert here == Mark.here()
    assert here.readable() == (sys.platform == "linux")
    assert not replace(here, value=bytes(16)).readable()


def test_where_the_system_knows_no_such_call_nothing_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.ctypes, "CDLL", lambda *_, **__: object())
    monkeypatch.setattr(reading, "_system_call", reading._system_call.__wrapped__)  # nothing is kept
    assert not Mark.here().readable()


def test_what_lies_outside_of_a_process_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(OSError, match="16 bytes cannot be read"):
        read_into(torch.zeros(4), os.getpid(), 8)
