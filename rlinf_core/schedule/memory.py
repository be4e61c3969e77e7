"""What components hold on a device, from what was measured on some numbers of devices."""

from __future__ import annotations

from collections.abc import Mapping

from rlinf_core.schedule.profile import MemoryUse

COPY_BYTES_PER_S = 1e10  # between device and host memory, where moving was never measured


def memory_use(measured: Mapping[int, float]) -> MemoryUse:
    """From bytes on each device by number of devices: `fixed + sharded / devices` through the fewest and
    the most devices. One number alone counts as fixed, which is safe for more devices only.

    >>> memory_use({1: 10.0, 2: 6.0}).sharded_bytes
    8.0
    """
    fewest, most = min(measured), max(measured)
    sharded = 0.0
    if fewest != most:
        sharded = (measured[fewest] - measured[most]) / (1 / fewest - 1 / most)
        sharded = min(max(0.0, sharded), measured[fewest] * fewest)
    fixed = max(0.0, measured[fewest] - sharded / fewest)
    copy_s = measured[fewest] / COPY_BYTES_PER_S
    return MemoryUse(fixed, sharded, onload_s=copy_s, offload_s=copy_s)
