"""Devices that a cluster says are GPUs: how they are counted, reserved and handed to processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
SCRIPT = """
import json, ray
from rlinf_backend_ray.config import RayConfig
from rlinf_backend_ray.engine import RayEngine
from rlinf_core.api import HostSpec, WorkerSpec

ray.init(
    address="local", num_cpus=2, num_gpus=2, resources={"accelerator_type:L4": 1}, include_dashboard=False,
    object_store_memory=100 * 2**20, labels={"ray.io/node-group": "act"}, logging_level="error",
)
engine = RayEngine(RayConfig())
(node,) = engine.nodes(0)
hosts = engine.start([HostSpec("a", device=0), HostSpec("b", device=1), HostSpec("c")])
calls = [host.create(WorkerSpec("w", "rlinf_core.testing.workers:EchoWorker")) for host in hosts]
[call.result(60) for call in calls]
seen = [host.call("w", "environment", "CUDA_VISIBLE_DEVICES").result(60) for host in hosts]
free = ray.available_resources().get("GPU", 0.0)
engine.stop()
print(json.dumps([node.type, node.devices, node.group, [host.device for host in hosts], seen, free]))
"""


def test_each_process_of_a_device_has_one_gpu_and_others_have_none() -> None:
    """The GPUs are said to be there; nothing computes on them."""
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    kind, devices, group, names, seen, free = json.loads(done.stdout.splitlines()[-1])
    assert (kind, devices, group) == ("L4", 2, "act")
    assert names == ["cuda:0", "cuda:0", ""]
    assert sorted(seen[:2]) == ["0", "1"]
    assert seen[2] in (None, "")
    assert free == 0
