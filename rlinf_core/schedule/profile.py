"""What is known of each component's cost: measurements, curves, memory and transfers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from rlinf_core.errors import ConfigError
from rlinf_core.schedule.curve import Coefficients, Curve, Law, Table, fit, work_of

KEPT = 5  # measurements of one component at one point; older ones give way


@dataclass(frozen=True)
class Measurement:
    """One component in one real step (the slowest rank, waiting not counted)."""

    component: str
    devices: int
    samples: int  # of the whole step, over all ranks
    seconds: float
    chunk: int = 0  # samples of one call on one rank; 0 = unknown or all
    device_type: str = "cpu"
    model_parallel: int = 1


@dataclass(frozen=True)
class WrittenCurve:
    """A component's time as somebody wrote it down. It stands where nothing was measured."""

    component: str
    law: Coefficients | Table
    device_type: str = "cpu"
    model_parallel: int = 1


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one device, and seconds to leave it and to come back. `sharded` parts are divided by
    the number of devices."""

    fixed_bytes: float = 0.0
    sharded_bytes: float = 0.0
    offloaded_bytes: float = 0.0
    onload_s: float = 0.0
    offload_s: float = 0.0


@dataclass(frozen=True)
class Profile:
    """All that was measured, or written by hand. Costs come from it by `schedule.cost`."""

    measurements: tuple[Measurement, ...] = ()
    memory: dict[str, MemoryUse] = field(default_factory=dict)  # by component
    sample_bytes: dict[str, float] = field(default_factory=dict)  # of what a component yields, a sample
    weight_bytes: dict[str, float] = field(default_factory=dict)  # of a component that others sync from
    sync_shared_s: float = 0.0  # weights to a component on the same devices
    sync_apart_s: float = 0.0  # and to one on others, beyond what bandwidth explains
    overhead_s: float = 0.0  # of a step, beyond what its components and copies take, in any plan
    fingerprint: str = ""  # of hardware, model and settings
    curves: tuple[WrittenCurve, ...] = ()

    def curve(self, component: str, device_type: str) -> Curve:
        """A component's time on a type of device. Raises `ConfigError` where nothing is known of it."""
        found = self._curves.get((component, device_type))
        if found is None:
            known = ", ".join(f"{name} on {kind}" for name, kind in self._curves) or "nothing"
            raise ConfigError(
                f"the profile does not know how long {component!r} takes on {device_type!r}; "
                f"it knows: {known}. Measure it there, or write a curve for it"
            )
        return found

    def device_types(self, component: str) -> tuple[str, ...]:
        """The types of device on which a component's time is known."""
        return tuple(kind for name, kind in self._curves if name == component)

    def adding(self, measured: Iterable[Measurement]) -> Profile:
        """With more measurements; of each point only the latest few are kept."""
        kept: dict[Measurement, list[Measurement]] = defaultdict(list)
        for one in (*self.measurements, *measured):
            kept[replace(one, seconds=0.0)].append(one)
        return replace(self, measurements=tuple(one for group in kept.values() for one in group[-KEPT:]))

    def scaled(self, factors: Mapping[str, float]) -> Profile:
        """Components that have become slower or faster by a factor, such as by longer responses."""
        return replace(
            self,
            measurements=tuple(
                replace(one, seconds=one.seconds * factors.get(one.component, 1.0))
                for one in self.measurements
            ),
            curves=tuple(
                replace(one, law=one.law.scaled(factors.get(one.component, 1.0))) for one in self.curves
            ),
        )

    @cached_property
    def _curves(self) -> dict[tuple[str, str], Curve]:
        laws: dict[tuple[str, str], dict[int, Law]] = defaultdict(dict)
        for written in self.curves:
            laws[written.component, written.device_type][written.model_parallel] = written.law
        points = defaultdict(list)
        for one in self.measurements:
            work = work_of(one.samples, one.devices, one.chunk, one.model_parallel)
            points[one.component, one.device_type, one.model_parallel].append((work, one.seconds))
        for (component, device_type, size), measured in points.items():
            laws[component, device_type][size] = fit(measured)
        return {key: Curve(by_size) for key, by_size in laws.items()}


def fingerprint(**parts: str | float) -> str:
    """A text that tells two profiles apart: `fingerprint(hardware="2 cpu", model="...")`."""
    return json.dumps(parts, sort_keys=True)


def check_fingerprint(profile: Profile, wanted: str, origin: str) -> None:
    """Raises `ConfigError` that says what differs, if the profile was made for something else.

    A profile without a fingerprint, as one writes it by hand, fits everything.
    """
    if not profile.fingerprint or profile.fingerprint == wanted:
        return
    ours, theirs = _parts(wanted), _parts(profile.fingerprint)
    differences = [
        f"{key}: {theirs.get(key, 'nothing')} there, {ours.get(key, 'nothing')} here"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    ]
    raise ConfigError(
        f"{origin} was made for something else ({'; '.join(differences)}); profile anew, or delete its "
        "fingerprint if it holds here all the same"
    )


def _parts(text: str) -> dict[str, object]:
    """The parts of a fingerprint; one that somebody wrote as a bare text is one part."""
    try:
        parts = json.loads(text)
    except json.JSONDecodeError:
        parts = text
    return parts if isinstance(parts, dict) else {"fingerprint": parts}
