"""Which SGLang is installed, and what is different in it. Imports nothing of SGLang."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any, Protocol

from rlinf_core.errors import PluginError

ADAPTERS = {  # release -> module
    "0.5.10": "rlinf_backend_sglang.release_0_5_10",
    "0.5.23": "rlinf_backend_sglang.release_0_5_23",
}


class Release(Protocol):
    """What the engine asks of a module for one release. Any: SGLang's engine."""

    @staticmethod
    def begin_update(engine: Any) -> None:
        """Before the first weights of a version. Raises `ModelError`."""

    @staticmethod
    def end_update(engine: Any) -> None:
        """After the last. Raises `ModelError`."""


def installed() -> str:
    """The version of SGLang here. Raises `PluginError` if there is none."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        raise PluginError(f"rollout sglang: SGLang is not installed in this environment; {_how()}") from None


def adapter() -> Release:
    """The module for what is installed. Raises `PluginError` for releases that were not looked at."""
    version = installed()
    module = ADAPTERS.get(".".join(version.split(".")[:3]))
    if module is None:
        raise PluginError(
            f"rollout sglang: SGLang {version} is installed in this environment; supported are "
            f"{' and '.join(ADAPTERS)}: {_how()}"
        )
    found: Any = import_module(module)  # Any: a module is no Protocol to the type checker
    release: Release = found
    return release


def _how() -> str:
    return "build its environment by `rlinf plugins install sglang --isolated`"
