"""What the engine refuses, and what it says then."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
import ray
from rlinf_backend_ray import cluster
from rlinf_backend_ray.cluster import reach
from rlinf_backend_ray.config import RayConfig
from rlinf_backend_ray.engine import RayEngine
from rlinf_backend_ray.keeper import Keeper

from rlinf_core.api import HostSpec
from rlinf_core.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"address": "ray://10.0.0.1:10001"}, "is that of a Ray Client, which is not a node"),
        ({"address": "10.0.0.1"}, "give host:port of the head node, as in 10.0.0.1:6379"),
        ({"silence_s": 0}, "engine.silence_s is 0; give more than 0"),
        ({"restarts": -1}, "engine.restarts is -1; give 0 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RayConfig(**settings)


@pytest.mark.parametrize("there", ["nobody", "silence", "another program"])
def test_a_cluster_that_does_not_answer_is_named_with_what_to_do(monkeypatch: Any, there: str) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if there != "nobody":
            listener.listen()
        if there == "another program":
            threading.Thread(target=_speak_http, args=(listener,), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(ConfigError, match=rf"no Ray answers at {address} .*ray start --head --port"):
            RayEngine(RayConfig(address=address, connect_timeout_s=1.0)).nodes(0)
    assert time.monotonic() - began < 10


def _speak_http(listener: socket.socket) -> None:
    sock, _ = listener.accept()
    with sock:
        sock.recv(100)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_a_ray_that_answers_is_joined_without_complaint(ray_here: str) -> None:
    reach(ray_here, 10.0)


@pytest.mark.parametrize(
    ("said", "tries"), [("The current node timed out during startup.", 2), ("No space left on device", 1)]
)
def test_a_ray_that_is_late_is_started_once_more_and_other_troubles_are_told(
    monkeypatch: Any, said: str, tries: int
) -> None:
    tried = []

    def init(**options: Any) -> None:
        tried.append(options["num_cpus"])
        if len(tried) == 1:
            raise Exception(said)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(cluster, "_own_processes", lambda: [])
    if tries == 1:
        with pytest.raises(ConfigError, match=f"no Ray could be started on this machine: {said}"):
            cluster._start(3, RayConfig())
    else:
        cluster._start(3, RayConfig())
    assert tried == [3] * tries


@pytest.mark.parametrize("found", ["1.13.0", ""])
def test_another_release_of_ray_or_none_is_refused_with_the_line_that_installs_one(
    monkeypatch: Any, found: str
) -> None:
    def version(name: str) -> str:
        if not found:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr("rlinf_backend_ray.installation.version", version)
    says = f"ray {found} is installed, >=2.44,<3 is supported" if found else "ray is not installed"
    with pytest.raises(ConfigError, match=rf"{says}: pip install 'ray>=2.44,<3'"):
        RayEngine(RayConfig())


def test_the_engine_loads_where_ray_is_missing() -> None:
    code = "import sys; sys.modules['ray'] = None; import rlinf_backend_ray.engine"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("ray_here")
def test_more_devices_than_the_cluster_gives_are_refused_when_it_is_asked_and_when_it_starts() -> None:
    engine = RayEngine(RayConfig(start_timeout_s=1.0))
    with pytest.raises(ConfigError, match=r"ranks=3 devices are asked for, .* give 2 \(.*: 2 CPUs\)"):
        engine.nodes(3)
    assert sum(node.devices for node in engine.nodes(2)) == 2
    with pytest.raises(ConfigError, match="asks for device 2; the cluster gave this run 2"):
        engine.start([HostSpec("a", device=2)])
    busy = RayEngine(RayConfig())
    busy.nodes(2)
    busy.start([HostSpec("a", device=0)])
    engine.nodes(2)
    with pytest.raises(ConfigError, match=r"has not given 2 CPU on .* within 1 s; it has 2 CPU.* 1 CPU"):
        engine.start([HostSpec("a", device=0), HostSpec("b", device=1)])
    busy.stop()


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"pips": ["numpy"]}, r"has pips, which Ray does not know; it knows .*pip, "),
        ({"pip": 3}, r"cannot be used: runtime_env\['pip'\] must be"),
        ({"working_dir": "/nowhere"}, "cannot be used: /nowhere is not a valid path"),
        ({"conda": "none"}, "could not be set up for process a: .*: Could not find Conda"),
    ],
)
@pytest.mark.usefixtures("ray_here")
def test_a_runtime_environment_that_cannot_be_is_refused(told: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)engine\.runtime_env {says}"):
        RayEngine(RayConfig(runtime_env=told)).start([HostSpec("a")])


@pytest.mark.usefixtures("ray_here")
def test_names_given_twice_and_nodes_with_other_packages_are_refused(monkeypatch: Any) -> None:
    with pytest.raises(ConfigError, match="given twice: a"):
        RayEngine(RayConfig()).start([HostSpec("a"), HostSpec("a")])
    monkeypatch.setattr("rlinf_backend_ray.keeper.versions", lambda: "rlinf-core 9.9.9 on Python 3.99")
    with pytest.raises(ConfigError, match=r"node .* has rlinf-core .*, the driver has rlinf-core 9.9.9"):
        RayEngine(RayConfig()).start([HostSpec("a")])


def test_a_keeper_that_was_given_nothing_says_so() -> None:
    with pytest.raises(ConfigError, match="has launched nothing"):
        Keeper().ask_to_end()
