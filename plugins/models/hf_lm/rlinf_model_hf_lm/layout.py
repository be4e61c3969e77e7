"""Where the tokens of a micro-batch lie when prompts that rows share are computed once, and padding never.

Packed tokens are, first, whole rows: every distinct prompt with the first response to it. Then come the
other responses, whose prompts lie in the first part. A response's last token predicts nothing and is left
out. Rows of similar length stand together in groups, which attention computes at once.

Axes: B rows, R some of them, T response positions, N packed tokens, G rows of a group, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

WORTH = 0.85  # of the padded tokens; above that there is little to win
WASTE = 128**2  # pairs of queries and keys that may be computed in vain to save a call
MASK_ELEMENTS = 1 << 26  # of a group whose rows need masks of their own
CAUSAL_FROM = 0.7  # share of queries among keys from where prompts are better queries too


@dataclass(frozen=True)
class Group:
    """Rows whose attention is one call. Row r's queries stand at positions `firsts[r]` and on."""

    firsts: tuple[int, ...]
    queries: int
    keys: int
    causal: bool  # queries and keys are the same positions
    padded: Tensor | None = None  # [G * Q] places among the group's own tokens; None = no row is padded
    real: Tensor | None = None  # places in [G * Q] of what is kept; None = all


@dataclass(frozen=True)
class Layout:
    """Index tensors of packed rows; entries for padding point anywhere and are masked."""

    source_N: Tensor  # places in the flat [B, S] of the collated ids
    positions_N: Tensor
    outputs: Tensor  # packed index of what predicts each response token, rows in order
    whole: tuple[Group, ...]  # of rows that lie in one piece
    sizes: tuple[int, ...]  # packed tokens of each of these groups, and of all others
    shared: tuple[Group, ...]  # of rows whose prompt lies elsewhere
    queries: Tensor  # packed index of every query of the shared groups
    keys: Tensor  # and of every key
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # made when first asked for

    def mask(self, number: int, group: Group, window: int) -> Tensor | None:
        """`[1 or G, 1, Q, K]`, True where a query attends; None where plain causal attention does."""
        window = window if 0 < window < group.keys else 0
        if group.causal and not window:
            return None
        if (number, window) not in self.masks:
            self.masks[number, window] = _mask(group, window, self.positions_N.device)
        return self.masks[number, window]


def layout(inputs: Mapping[str, Tensor], mask_BT: Tensor) -> Layout | None:
    """The layout of collated rows, or None where computing them padded is as good."""
    names = ("prompt_lengths", "response_lengths", "prompt_copies")
    prompt_B, response_B, first_B = torch.stack([inputs[name] for name in names]).cpu().numpy()
    steps_B = np.maximum(response_B - 1, 0)
    is_first_B = first_B == np.arange(len(first_B))
    tokens = int(prompt_B[is_first_B].sum() + steps_B.sum())
    if not steps_B.any() or tokens > WORTH * inputs["input_ids"].numel():
        return None
    return _Plan(prompt_B, steps_B, first_B, inputs["input_ids"].shape[1]).layout(mask_BT)


class _Plan:
    """Gives every token its place, and collects the indices of a layout."""

    def __init__(self, prompt_B: Ints, steps_B: Ints, first_B: Ints, stride: int) -> None:
        self.prompt_B, self.steps_B, self.first_B = prompt_B, steps_B, first_B
        self.length_B = prompt_B + steps_B
        self.stride = stride
        self.begin_B = np.zeros_like(prompt_B)  # place of a row's prompt
        self.reply_B = np.zeros_like(prompt_B)  # and of its response
        self.placed = 0
        self.source: list[Ints] = []
        self.positions: list[Ints] = []
        self.queries: list[Ints] = []
        self.keys: list[Ints] = []

    def layout(self, mask_BT: Tensor) -> Layout:
        device = mask_BT.device
        is_first_B = self.first_B == np.arange(len(self.first_B))
        firsts = self._similar(is_first_B.nonzero()[0])
        sizes = [int(self.length_B[rows_G].sum()) for rows_G in firsts]
        whole = [self._whole(rows_G) for rows_G in firsts]
        copies = self._similar((~is_first_B & (self.steps_B > 0)).nonzero()[0])
        shared = [self._shared(part_G) for rows_G in copies for part_G in self._fitting(rows_G)]

        def tensor(pieces: Sequence[Ints]) -> Tensor:
            return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *pieces])).to(device)

        return Layout(
            source_N=tensor(self.source),
            positions_N=tensor(self.positions),
            outputs=tensor([self._outputs(mask_BT)]),
            whole=tuple(_on(group, device) for group in whole),
            sizes=(*sizes, self.placed - sum(sizes)),
            shared=tuple(_on(group, device) for group in shared),
            queries=tensor(self.queries),
            keys=tensor(self.keys),
        )

    def _similar(self, rows_R: Ints) -> list[Ints]:
        """Longest first, cut where padding would waste more than a call costs."""
        ordered_R = rows_R[np.lexsort((rows_R, -self.length_B[rows_R]))]
        cuts, longest, wasted = [], 0, 0
        for number, length in enumerate(self.length_B[ordered_R].tolist()):
            wasted += longest**2 - length**2
            if not number or wasted > WASTE:
                cuts.append(number)
                longest, wasted = length, 0
        return np.split(ordered_R, cuts[1:]) if cuts else []

    def _fitting(self, rows_G: Ints) -> Iterator[Ints]:
        """Parts of a group whose masks fit in memory."""
        count = max(1, MASK_ELEMENTS // int(self.length_B[rows_G[0]]) ** 2)
        for begin in range(0, len(rows_G), count):
            yield rows_G[begin : begin + count]

    def _whole(self, rows_G: Ints) -> Group:
        lengths_G = self.length_B[rows_G]
        self.begin_B[rows_G] = self.placed + np.cumsum(lengths_G) - lengths_G
        self.reply_B[rows_G] = self.begin_B[rows_G] + self.prompt_B[rows_G]
        self._place(rows_G, np.zeros_like(rows_G), lengths_G)
        width = int(lengths_G[0])
        padded, real = _padding(lengths_G, width)
        return Group((0,) * len(rows_G), width, width, True, padded, real)

    def _shared(self, rows_G: Ints) -> Group:
        prompt_G, steps_G = self.prompt_B[rows_G], self.steps_B[rows_G]
        self.begin_B[rows_G] = self.begin_B[self.first_B[rows_G]]
        self.reply_B[rows_G] = self.placed + np.cumsum(steps_G) - steps_G
        self._place(rows_G, prompt_G, steps_G)
        keys, steps = int(self.length_B[rows_G].max()), int(steps_G.max())
        causal = steps > CAUSAL_FROM * keys
        queries = keys if causal else steps
        first_G = np.zeros_like(prompt_G) if causal else prompt_G
        self.keys.append(self._places(rows_G, np.arange(keys)[None]).ravel())
        self.queries.append(self._places(rows_G, first_G[:, None] + np.arange(queries)).ravel())
        kept = _ranges(np.arange(len(rows_G)) * queries + prompt_G - first_G, steps_G)
        real = None if len(kept) == len(rows_G) * queries else torch.from_numpy(kept)
        return Group(tuple(first_G.tolist()), queries, keys, causal, None, real)

    def _place(self, rows_R: Ints, begins_R: Ints, counts_R: Ints) -> None:
        """Positions from `begins_R` on of these rows come next."""
        self.positions.append(_ranges(begins_R, counts_R))
        self.source.append(_ranges(rows_R * self.stride + begins_R, counts_R))
        self.placed += int(counts_R.sum())

    def _places(self, rows_G: Ints, positions: Ints) -> Ints:
        """Packed index of positions `[G or 1, C]` of these rows; past a row's end, of its last."""
        prompt_G1 = self.prompt_B[rows_G, None]
        positions = np.minimum(positions, self.length_B[rows_G, None] - 1)
        begin_G1, reply_G1 = self.begin_B[rows_G, None], self.reply_B[rows_G, None]
        return np.where(positions < prompt_G1, begin_G1 + positions, reply_G1 + positions - prompt_G1)

    def _outputs(self, mask_BT: Tensor) -> Ints:
        """A response's first token is told from its prompt's last."""
        count_B = mask_BT.sum(1).cpu().numpy()
        rows_R = count_B.nonzero()[0]
        places = _ranges(self.reply_B[rows_R] - 1, count_B[rows_R])
        heads_R = np.cumsum(count_B[rows_R]) - count_B[rows_R]
        places[heads_R] = self.begin_B[self.first_B[rows_R]] + self.prompt_B[rows_R] - 1
        return places


def _ranges(begins_R: Ints, counts_R: Ints) -> Ints:
    """`counts_R[r]` numbers from `begins_R[r]` on, one row after the other."""
    ends_R = np.cumsum(counts_R)
    shift_N = np.repeat(begins_R - ends_R + counts_R, counts_R)
    return shift_N + np.arange(len(shift_N))


def _padding(lengths_G: Ints, width: int) -> tuple[Tensor | None, Tensor | None]:
    """Places of padded rows among their tokens, and of the tokens in the padded rows."""
    if (lengths_G == width).all():
        return None, None
    begins_G = np.cumsum(lengths_G) - lengths_G
    padded_GQ = begins_G[:, None] + np.minimum(np.arange(width), lengths_G[:, None] - 1)
    real = _ranges(np.arange(len(lengths_G)) * width, lengths_G)
    return torch.from_numpy(padded_GQ.ravel()), torch.from_numpy(real)


def _on(group: Group, device: torch.device) -> Group:
    if device.type == "cpu":
        return group
    moved = (None if index is None else index.to(device) for index in (group.padded, group.real))
    return Group(group.firsts, group.queries, group.keys, group.causal, *moved)


def _mask(group: Group, window: int, device: torch.device) -> Tensor:
    firsts = group.firsts[:1] if len(set(group.firsts)) == 1 else group.firsts
    columns_K = torch.arange(group.keys, device=device)
    positions_GQ1 = (torch.tensor(firsts)[:, None] + torch.arange(group.queries)).to(device)[..., None]
    # padding stands at the last key, so that it attends to something whatever the window
    behind_GQK = positions_GQ1.clamp_max(group.keys - 1) - columns_K
    seen_GQK = behind_GQK >= 0
    return (seen_GQK & (behind_GQK < window) if window else seen_GQK)[:, None]
