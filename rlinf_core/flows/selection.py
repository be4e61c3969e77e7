"""Dynamic sampling: rounds of generation until a step is full of groups that the algorithm trains on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import SelectionError
from rlinf_core.types import Experience

if TYPE_CHECKING:
    from rlinf_core.api import Algorithm
    from rlinf_core.comm.stream import Stream
    from rlinf_core.flows.flow import Requests

    Played = tuple[list[Experience], list[Any]]  # Any: what a stage returned, rank by rank
    Play = Callable[[Stream, Sequence[list[Any]]], Played]  # a round, told what those before it returned

Groups = Mapping[int, Sequence[Experience]]


@dataclass
class Selected:
    """The rows of a step: all that were generated, and those to train on; both in order."""

    rows: list[Experience]
    kept: list[Experience]
    results: list[list[Any]] = field(default_factory=list)  # what each round's stage returned
    metrics: dict[str, float] = field(default_factory=dict)


def unselected(rows: list[Experience], result: list[Any]) -> Selected:
    """All rows of one round."""
    rows = sorted(rows, key=lambda row: (row.group, row.replica))
    return Selected(rows, rows, [result])


@dataclass(frozen=True)
class Selection:
    """Asks for more groups in the place of those that `Algorithm.keep` rejects."""

    algorithm: Algorithm
    name: str  # the algorithm's, for errors
    groups: int  # that a step trains on

    def gather(self, requests: Requests, play: Play) -> Selected:
        """Play rounds until there are enough groups; those of the lowest numbers are trained on.

        A group counts by its rows that could be scored; with fewer than two of several it is rejected.
        Raises `SelectionError` when `needs.max_rounds` were not enough.
        """
        found: dict[int, list[Experience]] = {}
        kept: list[int] = []
        results: list[list[Any]] = []
        drawn = self.groups
        stream = requests.first()
        while True:
            rows, result = play(stream, results)
            results.append(result)
            fresh = _grouped(rows)
            found.update(fresh)
            kept += [number for number in sorted(fresh) if self._keeps(fresh[number])]
            if len(kept) >= self.groups:
                return self._selected(found, kept, drawn, results)
            if len(results) >= self.algorithm.needs.max_rounds:
                raise self._too_few(found, len(kept), drawn, len(results))
            more = self._expected(len(kept), drawn)
            drawn += more
            stream = requests.more(more)

    def _keeps(self, group: Sequence[Experience]) -> bool:
        scored = _scored(group)
        enough = len(scored) >= min(2, self.algorithm.needs.group_size)
        return enough and self.algorithm.keep(scored)

    def _expected(self, kept: int, drawn: int) -> int:
        """Groups of which as many should be kept as are missing, by the share so far; no more than a
        step's."""
        if not kept:
            return self.groups
        missing = self.groups - kept
        return min(self.groups, -(-missing * drawn // kept))

    def _selected(self, found: Groups, kept: Sequence[int], drawn: int, results: list[list[Any]]) -> Selected:
        metrics = {
            "train/rounds": float(len(results)),
            "train/drawn_groups": float(drawn),
            "train/kept_share": len(kept) / drawn,
            "train/zero_variance_groups": _equal(found) / max(1, _rewarded(found)),
        }
        chosen = [row for number in kept[: self.groups] for row in found[number]]
        metrics["train/trained_samples"] = float(len(_scored(chosen)))
        rows = [row for number in sorted(found) for row in found[number]]
        return Selected(rows, chosen, results, metrics)

    def _too_few(self, found: Groups, kept: int, drawn: int, rounds: int) -> SelectionError:
        rewards = [float(row.reward or 0.0) for group in found.values() for row in _scored(group)]
        mean = f"their mean reward was {sum(rewards) / len(rewards):.3g}" if rewards else "none had a reward"
        return SelectionError(
            f"algo: {self.name!r} kept {kept} of {drawn} groups ({drawn} prompts in {rounds} rounds), and a "
            f"step trains on {self.groups}; {_equal(found)} of the groups had equal rewards, and {mean}. "
            "Choose prompts that the model solves sometimes (easier ones if the reward is always low, harder "
            "ones if it is always high), fewer prompts a step (train.prompts_per_step), more rounds, or no "
            f"selection; the options: rlinf plugins show {self.name}"
        )


def _grouped(rows: Sequence[Experience]) -> dict[int, list[Experience]]:
    groups: dict[int, list[Experience]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.group, row.replica)):
        groups[row.group].append(row)
    return groups


def _scored(rows: Sequence[Experience]) -> list[Experience]:
    return [row for row in rows if row.error is None and row.reward is not None]


def _rewarded(found: Groups) -> int:
    return sum(bool(_scored(group)) for group in found.values())


def _equal(found: Groups) -> int:
    """Groups whose rewards are all the same number."""
    return sum(len({row.reward for row in _scored(group)}) == 1 for group in found.values())
