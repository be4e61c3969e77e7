"""The components of a flow and the edges between them, as the planner sees them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Component:
    """One worker group.

    `parallel_sizes` are the model-parallel sizes that its backend offers: a component runs on a
    multiple of one of them. A component that needs no device (`on_devices=False`) runs beside the
    others and is never placed.
    """

    name: str
    parallel_sizes: tuple[int, ...] = (1,)
    on_devices: bool = True
    max_devices: int | None = None  # more bring nothing, such as more than it has samples
    lockstep: bool = False  # its ranks work on every chunk together (collectives), not each on its own
    with_: str = ""  # shares memory with this component, so it always sits on the same devices


@dataclass(frozen=True)
class Edge:
    """`target` takes what `source` yields. Behind a barrier nothing is taken before all is there; with
    `ahead` the target takes what was made steps before, so that the two can work at one time."""

    source: str
    target: str
    barrier: bool = False
    quantum: int = 1  # fewest samples that may travel at once: a whole group where advantages need it
    ahead: bool = False


@dataclass(frozen=True)
class Graph:
    """Components in flow order (an order in which edges point forward, but for cycles).

    `cycles` are sets of components that exchange messages during one stage, such as environment and
    policy: the planner contracts each to one node; its members share all devices or none.
    `syncs` are pairs (source, target) whose weights are copied before every step. `rounds` is how often
    the members of a cycle exchange messages in one step, such as the actions of an episode.
    """

    components: tuple[Component, ...]
    edges: tuple[Edge, ...]
    samples: int  # of one step
    cycles: tuple[tuple[str, ...], ...] = ()
    syncs: tuple[tuple[str, str], ...] = ()
    rounds: int = 50

    def component(self, name: str) -> Component:
        """A component by name."""
        return next(part for part in self.components if part.name == name)

    @cached_property
    def placed(self) -> tuple[Component, ...]:
        """The components that the planner gives devices, in flow order."""
        return tuple(part for part in self.components if part.on_devices and not part.with_)

    @cached_property
    def ahead(self) -> frozenset[str]:
        """The components that work on later steps than the last one does."""
        found: set[str] = set()
        for edge in reversed(self.edges):
            if edge.ahead or edge.target in found:
                found.add(edge.source)
        return frozenset(found)

    def cycle_of(self, name: str) -> tuple[str, ...]:
        """The cycle that a component is in; just itself where there is none."""
        return next((cycle for cycle in self.cycles if name in cycle), (name,))
