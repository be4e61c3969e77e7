"""The policy that KL terms are measured against: the initial one, or a later one that was marked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rlinf_backend_megatron.adapters import Switch
from rlinf_backend_megatron.network import Network
from rlinf_core.errors import ConfigError


class Reference:
    """A frozen network beside the trained one; with adapters, the trained one without them, or with those of
    the mark."""

    def __init__(self, network: Network, copy: Network | None, switch: Switch | None) -> None:
        self.network, self.copy, self.switch = network, copy, switch
        self.marked = False  # whether it is another one than the initial policy
        self._held: dict[str, Tensor] = {}  # trained tensors at the mark

    @torch.no_grad()
    def mark(self) -> None:
        """From here on it is the policy as it is now."""
        self._check()
        self.marked = True
        if self.copy is not None:
            self.copy.load_state_dict(self.network.state_dict())
        else:
            self._held = {name: tensor.clone() for name, tensor in self._trained().items()}

    @contextmanager
    def active(self) -> Iterator[Network]:
        """The network to ask. Raises `ConfigError` if none is kept."""
        self._check()
        if self.copy is not None:
            yield self.copy
        elif self.switch is not None and not self.marked:
            self.switch.on = False
            try:
                yield self.network
            finally:
                self.switch.on = True
        else:
            kept = {name: tensor.clone() for name, tensor in self._trained().items()}
            self._fill(self._held)
            try:
                yield self.network
            finally:
                self._fill(kept)

    def held(self) -> dict[str, Tensor]:
        """Trained tensors at the mark, where there is no second network."""
        return dict(self._held)

    def make_room(self, *, marked: bool) -> None:
        """For what the reference of other ranks has."""
        self.marked = marked
        if marked and self.copy is None:
            self._held = {name: torch.zeros_like(tensor) for name, tensor in self._trained().items()}

    def tensors(self) -> list[Tensor]:
        """All that is kept for it."""
        copied = [] if self.copy is None else [*self.copy.parameters(), *self.copy.buffers()]
        return [*copied, *self._held.values()]

    def _check(self) -> None:
        if self.copy is None and self.switch is None:
            raise ConfigError("backend megatron: no reference is kept; build it with keep_reference=True")

    def _trained(self) -> dict[str, Tensor]:
        return {
            name: parameter.detach()
            for name, parameter in self.network.named_parameters()
            if parameter.requires_grad
        }

    @torch.no_grad()
    def _fill(self, values: dict[str, Tensor]) -> None:
        for name, target in self._trained().items():
            target.copy_(values[name])
