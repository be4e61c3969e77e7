"""The rows that are being generated: their requests, tokens so far, and when they end.

Axes: R running rows, T response positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlinf_backend_fsdp.rollout_sampling import seed_keys, uniforms
from rlinf_core.responses import newly_stopped, sample_of
from rlinf_core.types import FinishReason, Request, Sample, Sampling

if TYPE_CHECKING:
    from rlinf_core.api import TextProcessor


class Rows:
    """Running rows in admission order; `slots_R` are their places in the decoder."""

    def __init__(self, slots: int, sampling: Sampling, processor: TextProcessor, version: int) -> None:
        self.slots_R = np.zeros(0, np.int64)
        self._sampling = sampling
        self._processor = processor
        self._version = version
        self._ends = tuple(sorted(processor.eos_ids))
        self.reserved = 0  # prompt and possible response tokens of the running rows
        self._free = list(range(slots - 1, -1, -1))
        self._requests: dict[int, Request] = {}
        self._keys_R = np.zeros(0, np.uint64)
        self._positions_R = np.zeros(0, np.int64)
        self._limits_R = np.zeros(0, np.int64)
        self._tokens_ST = np.zeros((slots, min(64, sampling.max_new_tokens)), np.int64)
        self._logprobs_ST = np.zeros(self._tokens_ST.shape, np.float32)

    @property
    def free(self) -> int:
        """Slots without a row."""
        return len(self._free)

    def __len__(self) -> int:
        return len(self.slots_R)

    def admit(self, requests: Sequence[Request]) -> list[int]:
        """Give each request a slot; returns the slots."""
        slots = [self._free.pop() for _ in requests]
        self.reserved += sum(self._room(request) for request in requests)
        self._requests.update(zip(slots, requests, strict=True))
        # seeds may be any 64-bit pattern, signed or not
        seeds = np.array([request.seed & (2**64 - 1) for request in requests], np.uint64).view(np.int64)
        self.slots_R = np.concatenate([self.slots_R, np.array(slots, np.int64)])
        self._keys_R = np.concatenate([self._keys_R, seed_keys(seeds)])
        begun = [0 if request.begun is None else len(request.begun.response_ids) for request in requests]
        limits = [request.until or self._sampling.max_new_tokens for request in requests]
        self._positions_R = np.concatenate([self._positions_R, np.array(begun, np.int64)])
        self._limits_R = np.concatenate([self._limits_R, np.array(limits, np.int64)])
        self._reserve(max(begun))
        for slot, request in zip(slots, requests, strict=True):
            if request.begun is not None:
                self._tokens_ST[slot, : len(request.begun.response_ids)] = request.begun.response_ids
                self._logprobs_ST[slot, : len(request.begun.logprobs)] = request.begun.logprobs
        return slots

    def uniforms(self, last: int) -> NDArray[np.float32]:
        """The uniform of the next token of the `last` most recently admitted rows."""
        part = slice(len(self) - last, None)
        return uniforms(self._keys_R[part], self._positions_R[part])

    def early(self, last: int) -> NDArray[np.bool_]:
        """Which of the `last` rows may not end with their next token."""
        return self._positions_R[len(self) - last :] < self._sampling.min_new_tokens

    def append(
        self, tokens_R: NDArray[np.int64], logprobs_R: NDArray[np.float32]
    ) -> tuple[NDArray[np.bool_], list[Sample]]:
        """Append a token to the `len(tokens_R)` most recent rows; take out those that end.

        Returns which of these rows go on, and the samples of those that do not.
        """
        part = slice(len(self) - len(tokens_R), None)
        slots, positions, limits = self.slots_R[part], self._positions_R[part], self._limits_R[part]
        self._reserve(int(positions.max()) + 1)
        self._tokens_ST[slots, positions] = tokens_R
        self._logprobs_ST[slots, positions] = logprobs_R
        positions += 1  # a view: advances the rows themselves
        stopped = tokens_R == self._ends[0]
        for end in self._ends[1:]:
            stopped |= tokens_R == end
        if self._sampling.stop:
            stopped |= self._texts_stop(slots, positions)
        going = ~stopped & (positions < limits)
        if going.all():
            return going, []
        samples = [
            self._sample(int(i), "stop" if stopped[i] else "length", part) for i in (~going).nonzero()[0]
        ]
        self._keep(np.concatenate([np.ones(len(self) - len(going), np.bool_), going]))
        return going, samples

    def _room(self, request: Request) -> int:
        return len(request.prompt.token_ids) + self._sampling.max_new_tokens

    def _keep(self, kept_R: NDArray[np.bool_]) -> None:
        for slot in self.slots_R[~kept_R].tolist():
            self._free.append(slot)
            self.reserved -= self._room(self._requests.pop(slot))
        self.slots_R = self.slots_R[kept_R]
        self._keys_R = self._keys_R[kept_R]
        self._positions_R = self._positions_R[kept_R]
        self._limits_R = self._limits_R[kept_R]

    def _sample(self, row: int, finish: FinishReason, part: slice) -> Sample:
        slot, length = int(self.slots_R[part][row]), int(self._positions_R[part][row])
        request = self._requests[slot]
        ids_T = self._tokens_ST[slot, :length].copy()
        versions_T = np.full(length, self._version)
        if request.begun is not None:
            versions_T[: len(request.begun.versions)] = request.begun.versions
        logprobs_T = self._logprobs_ST[slot, :length].copy()
        return sample_of(request, ids_T, logprobs_T, versions_T, finish, self._processor.decode(ids_T))

    def _texts_stop(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Rows in whose text a stop text has appeared with the last token."""
        window = 4 * max(len(text) for text in self._sampling.stop) + 8
        stopped = np.zeros(len(slots), np.bool_)
        for row, (slot, length) in enumerate(zip(slots.tolist(), positions.tolist(), strict=True)):
            tail = self._tokens_ST[slot, max(0, length - window) : length]
            stopped[row] = newly_stopped(tail, self._sampling.stop, self._processor)
        return stopped

    def _reserve(self, columns: int) -> None:
        have = self._tokens_ST.shape[1]
        if columns > have:
            more = ((0, 0), (0, min(2 * have, self._sampling.max_new_tokens) - have))
            self._tokens_ST = np.pad(self._tokens_ST, more)
            self._logprobs_ST = np.pad(self._logprobs_ST, more)
