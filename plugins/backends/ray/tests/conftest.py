"""A Ray of a module of tests, which engines without an address join."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@pytest.fixture(scope="module")
def ray_here() -> Iterator[str]:
    """Two CPUs; gives the address. It ends with the module and prints nothing here: other modules' tests, in
    the same process, read what is printed and count descriptors."""
    import ray

    context = ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        logging_level="error",
        log_to_driver=False,
    )
    yield context.address_info["address"]
    ray.shutdown()
