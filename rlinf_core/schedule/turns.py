"""How the members of a cycle take turns with groups of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One member works on one group."""

    member: int
    group: int
    start: float
    end: float
    last: bool  # the group's last turn with this member


def turns(totals: Sequence[float], groups: int, rounds: int, latency: float) -> list[Turn]:
    """Groups go round the members `rounds` times; a member serves whichever group has waited longest.

    `totals` are the members' seconds over all rounds and groups; `latency` is that of one message.
    """
    free = [0.0] * len(totals)
    ready = [0.0] * groups  # when each group reaches its next member
    found = []
    for number in range(rounds):
        for member, total in enumerate(totals):
            for group in sorted(range(groups), key=lambda one: ready[one]):
                start = max(free[member], ready[group])
                end = start + total / (rounds * groups)
                found.append(Turn(member, group, start, end, number == rounds - 1))
                free[member], ready[group] = end, end + latency
    return found
