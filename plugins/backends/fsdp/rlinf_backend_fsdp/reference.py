"""The policy that KL terms are measured against: the initial one, or a later one that was marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from rlinf_backend_fsdp.policy import PolicyModule
from rlinf_core.errors import ConfigError


class Reference:
    """`copy` is a frozen policy beside the trained one; None with adapters, where the base is shared."""

    def __init__(self, policy: PolicyModule, copy: PolicyModule | None, *, adapters: bool) -> None:
        self.policy = policy
        self.copy = copy
        self.adapters = adapters
        self.marked: dict[str, Tensor] = {}  # trained tensors at the mark, by parameter name

    def tensors(self) -> list[Tensor]:
        """Every tensor that is kept for it."""
        copied = [] if self.copy is None else [*self.copy.parameters(), *self.copy.buffers()]
        return [*copied, *self.marked.values()]

    @torch.no_grad()
    def mark(self, trained: Mapping[str, Tensor]) -> None:
        """From here on the reference is the policy with these trained tensors."""
        self.marked = {name: tensor.clone() for name, tensor in trained.items()}
        self.install()

    @torch.no_grad()
    def install(self) -> None:
        """Put the marked tensors where they are used."""
        if self.copy is not None:
            frozen = dict(self.copy.named())
            for name, tensor in self.marked.items():
                frozen[name].copy_(tensor)

    @contextmanager
    def active(self, trained: Mapping[str, Tensor]) -> Iterator[PolicyModule]:
        """The policy to ask; adapters are exchanged, or switched off, and brought back."""
        if self.copy is not None:
            yield self.copy
        elif not self.adapters:
            raise ConfigError("backend fsdp: no reference is kept; build it with keep_reference=True")
        elif not self.marked:
            with self.policy.inner.disable_adapter():  # type: ignore[operator]  # peft is not typed
                yield self.policy
        else:
            kept = {name: tensor.clone() for name, tensor in trained.items()}
            _fill(trained, self.marked)
            try:
                yield self.policy
            finally:
                _fill(trained, kept)


@torch.no_grad()
def _fill(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> None:
    for name, target in targets.items():
        target.copy_(sources[name])
