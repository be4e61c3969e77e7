"""The hub's own end."""

from __future__ import annotations

import pytest

from rlinf_core.comm.hub import ChannelHub


def test_a_hub_whose_thread_ends_before_it_is_woken_closes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Something else may have woken the thread, which then saw that it is to end."""
    hub = ChannelHub()
    wake = hub._wake

    def late() -> None:
        hub._wake_there.send(b"x")
        hub._thread.join(5.0)
        assert not hub._thread.is_alive()
        wake()

    monkeypatch.setattr(hub, "_wake", late)
    hub.close()
    hub.close()
