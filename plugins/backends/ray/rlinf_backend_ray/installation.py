"""Which releases of Ray this engine works with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from rlinf_core.errors import ConfigError

SUPPORTED = ">=2.44,<3"


def require_ray() -> None:
    """Raises `ConfigError` with the line that installs it, where Ray is missing or another release."""
    try:
        found = version("ray")
    except PackageNotFoundError as error:
        raise ConfigError(f"engine ray: ray is not installed: pip install 'ray{SUPPORTED}'") from error
    if not SpecifierSet(SUPPORTED, prereleases=True).contains(found):
        raise ConfigError(
            f"engine ray: ray {found} is installed, {SUPPORTED} is supported: pip install 'ray{SUPPORTED}'"
        )
