"""Ctrl-C: patience first, then an end at once."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rlinf_core.run.interrupt import Interrupt


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_only_asks() -> None:
    with Interrupt(patience_s=60) as interrupt:
        assert not interrupt.requested
        press()
        assert interrupt.requested


def test_a_second_ctrl_c_ends_at_once_also_while_the_run_is_being_saved() -> None:
    with Interrupt(patience_s=60) as interrupt:
        press()
        interrupt.settle()
        with pytest.raises(KeyboardInterrupt):
            press()


def test_a_run_that_does_not_react_is_ended() -> None:
    began = time.monotonic()
    with Interrupt(patience_s=0.05):
        press()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(5)
    assert time.monotonic() - began < 2


def test_a_run_that_reacts_in_time_may_save_for_as_long_as_it_takes() -> None:
    with Interrupt(patience_s=0.05) as interrupt:
        press()
        interrupt.settle()
        time.sleep(0.15)
    assert interrupt.requested


def test_ctrl_c_during_the_last_save_ends_nothing() -> None:
    with Interrupt(patience_s=0.05) as interrupt:
        interrupt.settle()
        press()
        time.sleep(0.15)


def test_afterwards_ctrl_c_means_what_it_meant_before() -> None:
    former = signal.getsignal(signal.SIGINT)
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != former
    assert signal.getsignal(signal.SIGINT) == former
