"""Memory of components from measurements whose law is known."""

from __future__ import annotations

import pytest

from rlinf_core.schedule.memory import memory_use


def test_what_is_sharded_and_what_is_not_come_apart() -> None:
    use = memory_use({1: 3.0 + 8.0, 4: 3.0 + 8.0 / 4, 2: 99.0})
    assert (use.fixed_bytes, use.sharded_bytes) == pytest.approx((3.0, 8.0))


def test_one_measurement_is_taken_as_fixed() -> None:
    use = memory_use({2: 5e9})
    assert (use.fixed_bytes, use.sharded_bytes, use.onload_s) == (5e9, 0.0, 0.5)


def test_more_bytes_on_more_devices_shard_nothing() -> None:
    assert memory_use({1: 4.0, 2: 5.0}).sharded_bytes == 0.0
