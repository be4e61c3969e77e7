"""Why a plan lost, and why there is none, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlinf_core.cluster.numbering import as_ranges
from rlinf_core.schedule.cost import GRAIN
from rlinf_core.schedule.graph import Graph
from rlinf_core.schedule.optimum import Optimum
from rlinf_core.schedule.plan import Mode, Plan

if TYPE_CHECKING:
    from rlinf_core.schedule.search import Candidate

NOTABLE = 0.02  # share of a step


def placement_text(plan: Plan) -> str:
    """Such as `rollout 0-3 (chunks of 64), actor 4-7`."""
    parts = []
    for name, part in plan.assignments.items():
        notes = [f"chunks of {part.chunk}"] if part.chunk else []
        notes += [] if part.resident else ["offloaded between"]
        notes += [f"{part.model_parallel} devices a rank"] if part.model_parallel > 1 else []
        told = f" ({', '.join(notes)})" if notes else ""
        parts.append(f"{name} {as_ranges(part.devices)}{told}")
    groups = f", in {plan.stages} groups" if plan.stages > 1 else ""
    return ", ".join(parts) + groups


def why_not(loser: Candidate, best: Candidate, graph: Graph) -> str:
    """What makes a plan slower than the best one."""
    extra = loser.simulation.step_s - best.simulation.step_s
    step_s = best.simulation.step_s
    if extra <= 1e-6 * step_s:
        return "as fast as the one chosen"
    causes = [*_slower_parts(loser, best, NOTABLE * step_s), *_other_causes(loser, best, NOTABLE * step_s)]
    rest = causes or ["its parts wait for each other a little longer"]
    return f"{extra:.3g} s slower ({extra / step_s:.0%}): {'; '.join(rest)}"


def _slower_parts(loser: Candidate, best: Candidate, least: float) -> list[str]:
    found = []
    for name, seconds in loser.simulation.busy_s.items():
        other = best.simulation.busy_s[name]
        if seconds - other <= least:
            continue
        seat, wanted = loser.plan.assignments.get(name), best.plan.assignments.get(name)
        where = ""
        if seat and wanted and len(seat.devices) != len(wanted.devices):
            where = f" on {len(seat.devices)} device(s) instead of {len(wanted.devices)}"
        found.append((seconds - other, f"{name} takes {seconds:.3g} s{where} (there {other:.3g} s)"))
    return [text for _, text in sorted(found, reverse=True)]


def _other_causes(loser: Candidate, best: Candidate, least: float) -> list[str]:
    found = []
    for kind, what in (("load", "switching takes"), ("transfer", "copying weights takes")):
        mine, other = loser.simulation.seconds(kind), best.simulation.seconds(kind)  # type: ignore[arg-type]
        if mine - other > least:
            found.append(f"{what} {mine:.3g} s (there {other:.3g} s)")
    mine, other = _overlap(loser), _overlap(best)
    if other - mine > least:
        little = f"only {mine:.3g} s of its parts' work overlaps" if mine > least else "its parts take turns"
        found.append(f"{little} (there {other:.3g} s overlap)")
    idle, other_idle = loser.simulation.bubble_ratio, best.simulation.bubble_ratio
    if idle - other_idle > NOTABLE:
        found.append(f"devices are idle {idle:.0%} of the time (there {other_idle:.0%})")
    return found


def _overlap(candidate: Candidate) -> float:
    """Seconds by which its parts' work is longer than its step."""
    return max(0.0, sum(candidate.simulation.busy_s.values()) - candidate.simulation.step_s)


def why_none(optimum: Optimum, mode: Mode | None) -> str:
    """Why no plan (of a mode) exists."""
    unfit = [text for number in range(len(optimum.blocks.blocks)) if (text := _unfit(optimum, number))]
    if unfit:
        return "; ".join(unfit)
    cluster = optimum.cost.cluster
    blocks = optimum.blocks.blocks
    names = ", ".join(block.name for block in blocks)
    have = f"{cluster.size} device(s) of type {', '.join(cluster.types)}"
    if mode == "disaggregated":
        return (
            f"mode: disaggregated needs devices of its own for each of {names}, and memory for each there; "
            f"there are {have}. Use mode: auto, or more devices"
        )
    if mode == "hybrid":
        return (
            f"mode: hybrid needs components that share devices beside ones that do not; {names} on {have} "
            "leave no such plan. Use mode: auto"
        )
    room = min(cluster.memory_of(kind) for kind in cluster.types)
    return (
        f"{names} do not fit together on the same {have} with {_gib(room)} each, even if each leaves when "
        "another one works. Use more devices, or mode: auto if a mode was set"
    )


def _unfit(optimum: Optimum, number: int) -> str:
    """What a block lacks on its own; "" if it fits somewhere."""
    if any(one.kept + one.loaded <= GRAIN for one in optimum.options.of(number, 0)):
        return ""
    options = list(optimum.options.of(number, 0))
    block, cost = optimum.blocks.blocks[number], optimum.cost
    parts = [part.name for part in (*block.early, *block.late)]
    kinds = [kind for kind in cost.cluster.types if kind in cost.types_of((*block.early, *block.late))]
    most = max((sum(seat.devices for seat in one.option.seats) for one in options), default=0)
    if not most:
        sizes = sorted({size for member in block.members for size in member.parallel_sizes})
        return (
            f"{block.name} runs on a multiple of {' or '.join(map(str, sizes))} devices; there are "
            f"{cost.cluster.size} ({', '.join(kinds)})"
        )
    room = max(cost.memory_of(kind) for kind in kinds)
    need = sum(cost.memory(part, most) for part in parts)
    fixed = sum(cost.memory_use(part).fixed_bytes for part in parts)
    sharded = sum(cost.memory_use(part).sharded_bytes for part in parts)
    works = f"devices of at least {_gib(need)}"
    if fixed < room and sharded:
        works = f"{math.ceil(sharded / (room - fixed))} devices of {_gib(room)}, or {works}"
    return (
        f"{block.name} needs {_gib(need)} on each of {most} {'/'.join(kinds)} device(s), which have "
        f"{_gib(room)}; what would fit: {works}"
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"
