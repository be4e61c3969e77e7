"""What is known of each component's cost: measurements, fitted curves, memory and transfers."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    fingerprint: str = ""  # of hardware, model and settings
