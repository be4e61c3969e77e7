"""Versions of what the core and the installed plugins ask for, and what they can do without."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib import metadata

from packaging.requirements import Requirement

from rlinf_core.checkup.finding import Finding
from rlinf_core.plugins import plugins
from rlinf_core.plugins.kinds import OBSERVERS, SPECS

_OURS = "rlinf-"  # bundles of plugins, which are told one by one


def versions() -> Iterator[Finding]:
    """Python, what is needed, and what some settings need beside it."""
    yield Finding("version", "python", "ok", platform.python_version())
    offers = (info for kind in (*SPECS, OBSERVERS) for info in plugins().info(kind))
    distributions = sorted({"rlinf-core", *(info.distribution for info in offers)})
    wanted: dict[str, list[tuple[str, Requirement]]] = {}  # a package, and who asks for which versions
    for distribution in distributions:
        yield Finding("version", distribution, "ok", metadata.version(distribution))
        for asked in _required(distribution):
            wanted.setdefault(asked.name.lower().replace("_", "-"), []).append((distribution, asked))
    for package, askers in sorted(wanted.items()):
        if package not in distributions:
            yield _needed(package, askers)
    for distribution in distributions:
        yield from _extras(distribution)


def _needed(package: str, askers: Sequence[tuple[str, Requirement]]) -> Finding:
    first = askers[0]
    version = _version(package)
    if version is None:
        missing = f"not installed, but {first[0]} asks for it"
        return Finding("version", package, "broken", missing, f"pip install {_words(first[1])}")
    for asker, asked in askers:
        if not asked.specifier.contains(version, prereleases=True):
            detail = f"{version}, but {asker} asks for {asked.specifier}"
            return Finding("version", package, "broken", detail, f"pip install {_words(asked)}")
    return Finding("version", package, "ok", version)


def _extras(distribution: str) -> Iterator[Finding]:
    """One line for each set of packages that some settings need, unless it is whole."""
    for extra in metadata.metadata(distribution).get_all("Provides-Extra") or ():
        asked = [each for each in _required(distribution, extra) if not each.name.startswith(_OURS)]
        lacking = [each for each in asked if not _fits(each)]
        if lacking:
            names = ", ".join(_told(each) for each in lacking)
            packages = " ".join(_words(each) for each in lacking)
            yield Finding("version", f"{distribution}[{extra}]", "absent", names, f"pip install {packages}")


def _required(distribution: str, extra: str = "") -> Iterator[Requirement]:
    """Packages that a distribution, or one of its extras alone, asks for on this machine."""
    for line in metadata.requires(distribution) or ():
        asked = Requirement(line)
        always = asked.marker is None or asked.marker.evaluate({"extra": ""})
        then = asked.marker is None or asked.marker.evaluate({"extra": extra})
        if then and always == (not extra):
            yield asked


def _fits(asked: Requirement) -> bool:
    version = _version(asked.name)
    return version is not None and asked.specifier.contains(version, prereleases=True)


def _told(asked: Requirement) -> str:
    version = _version(asked.name)
    return (
        f"{asked.name} not installed" if version is None else f"{asked.name} {version}, not {asked.specifier}"
    )


def _words(asked: Requirement) -> str:
    """As a shell takes it."""
    return f"'{asked.name}{asked.specifier}'" if asked.specifier else asked.name


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
