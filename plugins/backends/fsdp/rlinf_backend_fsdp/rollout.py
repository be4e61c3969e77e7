"""The `hf` rollout engine: generation in the trainer's process with continuous admission of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn

from rlinf_backend_fsdp.rollout_rows import Rows
from rlinf_backend_fsdp.rollout_sampling import draw
from rlinf_core.adapters import adapted_module
from rlinf_core.api import Decoder, LoRAConfig, Model, RolloutEngine, WeightBucket
from rlinf_core.comm.places import common_dtype, copy_into
from rlinf_core.errors import ModelError
from rlinf_core.shelf import Shelf, lend, stored_bytes
from rlinf_core.types import Prompt, Request, Sample, Sampling

if TYPE_CHECKING:
    from rlinf_backend_fsdp.config import HFRolloutConfig


class HFRollout(RolloutEngine):
    """Keeps up to `max_running` rows in the model's decoder; rows that end make room for waiting ones."""

    config: HFRolloutConfig

    def __init__(
        self, config: HFRolloutConfig, model: Model, lora: LoRAConfig, device: str = "cpu", seed: int = 0
    ) -> None:
        super().__init__(config, model, lora, device, seed)
        self._module: nn.Module | None = None
        self._decoder: Decoder | None = None
        self._shelf = Shelf()
        self._shared: set[str] = set()  # weights whose data are a trainer's
        self.host_is_elsewhere = device != "cpu"

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Install one weight version. Parameters of a trainer in this process are shared, other
        tensors are copied. `version` is set last, so a failed load leaves no usable version."""
        self.onload()
        first = self.version < 0
        version, self.version = -1, -1
        slots = self._parameters()
        missing = set(slots)
        for bucket in buckets:
            for name, tensor in bucket.tensors.items():
                if name not in slots:
                    raise ModelError(
                        f"rollout hf: received weight {name!r}, which its module does not have; trainer and "
                        "rollout must use the same model and lora settings"
                    )
                if _install(slots[name], tensor, name):
                    lend(cast(nn.Parameter, tensor), self)
                    self._shared.add(name)
                missing.discard(name)
            version = bucket.version
        if first and missing - self._aliases(slots, missing):
            raise ModelError(
                f"rollout hf: the first weights lack {len(missing)} tensors, such as {min(missing)!r}"
            )
        if self._decoder is not None:
            self._decoder.refresh()
        self.version = version
        return version

    def weight_dtype(self) -> str:
        """Of the module."""
        return common_dtype(self._parameters().values())

    def generate(self, requests: Iterable[list[Request]], sampling: Sampling) -> Iterator[list[Sample]]:
        """Finished samples as they finish. Raises `ModelError` for a prompt that leaves no room."""
        if self.version < 0:
            raise ModelError("rollout hf: generate before load_weights; no weight version is installed")
        self.onload()
        decoder = self._ready_decoder()
        rows = Rows(self.config.max_running, sampling, self.model.processor(), self.version)
        source = iter(requests)
        waiting: deque[Request] = deque()
        tokens_R = torch.zeros(0, dtype=torch.int64, device=self.device)
        open_source = True
        try:
            while True:
                while open_source and len(waiting) < rows.free:
                    chunk = next(source, None)
                    open_source = chunk is not None
                    if not chunk:
                        break
                    waiting.extend(self._checked(chunk, sampling))
                if admitted := self._admissible(rows, waiting, sampling):
                    added_R, samples = self._admit(decoder, rows, admitted, sampling)
                    tokens_R = torch.cat([tokens_R, added_R])
                elif len(rows):
                    tokens_R, samples = self._advance(decoder, rows, tokens_R, sampling)
                elif open_source:
                    continue
                else:
                    return
                if samples:
                    yield samples
        finally:
            decoder.release(rows.slots_R.tolist())

    def memory_bytes(self) -> float:
        """Weights, and the cache at its largest so far."""
        cache = 0.0 if self._decoder is None else self._decoder.memory_bytes()
        return stored_bytes(self._parameters().values()) + cache

    def onload(self) -> None:
        """Bring the weights back onto the device; the cache is allocated by the next `generate`."""
        self._shelf.fetch()

    def offload(self) -> None:
        """Free the cache, and move weights of its own to host memory. On the CPU there is nowhere to go:
        there only the cache is freed."""
        if "cache" in self.config.offload:
            self._decoder = None
        if "weights" in self.config.offload and self.host_is_elsewhere and self._module is not None:
            tensors = self._parameters()
            self._shelf.put(tensors.values(), kept=[tensors[name] for name in self._shared])

    def _admissible(self, rows: Rows, waiting: deque[Request], sampling: Sampling) -> list[Request]:
        """Take the waiting requests that there is room for. A prefill costs about as much as a step
        however few rows it admits, so while rows run, a few have to have ended first."""
        budget = self.config.max_cache_tokens - rows.reserved
        count = 0
        while count < min(rows.free, len(waiting)):
            budget -= len(waiting[count].prompt.token_ids) + sampling.max_new_tokens
            if budget < 0 and (count or len(rows)):
                break
            count += 1
        if len(rows) and count < min(len(waiting), 1 + len(rows) // 8):
            return []
        return [waiting.popleft() for _ in range(count)]

    def _admit(
        self, decoder: Decoder, rows: Rows, requests: Sequence[Request], sampling: Sampling
    ) -> tuple[Tensor, list[Sample]]:
        slots = rows.admit(requests)
        logits_RV = decoder.prefill_prompts(slots, [_so_far(request) for request in requests])
        return self._extend(decoder, rows, logits_RV, sampling)

    def _advance(
        self, decoder: Decoder, rows: Rows, tokens_R: Tensor, sampling: Sampling
    ) -> tuple[Tensor, list[Sample]]:
        logits_RV = decoder.step(rows.slots_R.tolist(), tokens_R)
        return self._extend(decoder, rows, logits_RV, sampling)

    @torch.inference_mode()
    def _extend(
        self, decoder: Decoder, rows: Rows, logits_RV: Tensor, sampling: Sampling
    ) -> tuple[Tensor, list[Sample]]:
        """Draw the next token of the rows that these logits belong to; returns those that go on."""
        count = len(logits_RV)
        if sampling.min_new_tokens:
            early = torch.from_numpy(rows.early(count)).to(self.device)
            for end in self.model.processor().eos_ids:
                logits_RV[:, end].masked_fill_(early, -torch.inf)
        uniforms_R = torch.from_numpy(rows.uniforms(count)).to(self.device)
        tokens_R, logprobs_R = draw(logits_RV, uniforms_R, sampling)
        slots = rows.slots_R[len(rows) - count :]
        going, samples = rows.append(tokens_R.cpu().numpy(), logprobs_R.cpu().numpy())
        if samples:
            decoder.release(slots[~going].tolist())
            tokens_R = tokens_R[torch.from_numpy(np.flatnonzero(going)).to(self.device)]
        return tokens_R, samples

    def _checked(self, requests: Sequence[Request], sampling: Sampling) -> Sequence[Request]:
        context = self.model.processor().context_length
        for request in requests:
            length = len(request.prompt.token_ids)
            if length < 1 or length + sampling.max_new_tokens > context:
                raise ModelError(
                    f"rollout hf: prompt {request.prompt.index} has {length} tokens and "
                    f"sampling.max_new_tokens is {sampling.max_new_tokens}; together "
                    f"{length + sampling.max_new_tokens}, but the model's context is {context}. Lower "
                    "sampling.max_new_tokens or set train.max_prompt_tokens"
                    if length
                    else f"rollout hf: prompt {request.prompt.index} has no tokens"
                )
        return requests

    def _ready_decoder(self) -> Decoder:
        if self._decoder is None:
            context = self.model.processor().context_length
            self._decoder = self.model.decoder(self._own_module(), self.config.max_running, context)
        return self._decoder

    def _own_module(self) -> nn.Module:
        if self._module is None:
            module = adapted_module(self.model, self.lora, self.seed)
            self._module = module.eval().requires_grad_(False).to(self.device)
        return self._module

    def _parameters(self) -> dict[str, Tensor]:
        module = self._own_module()
        return {
            **dict(module.named_buffers(remove_duplicate=False)),
            **dict(module.named_parameters(remove_duplicate=False)),
        }

    def _aliases(self, slots: dict[str, Tensor], missing: set[str]) -> set[str]:
        """Names that need no weight: buffers, and parameters tied to one that was given."""
        given = {id(tensor) for name, tensor in slots.items() if name not in missing}
        return {
            name for name in missing if not isinstance(slots[name], nn.Parameter) or id(slots[name]) in given
        }


def _so_far(request: Request) -> Prompt:
    """The prompt, with what was begun of the response."""
    if request.begun is None:
        return request.prompt
    ids = np.concatenate([request.prompt.token_ids, request.begun.response_ids])
    return replace(request.prompt, token_ids=ids)


@torch.no_grad()
def _install(slot: Tensor, tensor: Tensor, name: str) -> bool:
    """Whether the data are shared from now on."""
    if slot.shape != tensor.shape:
        raise ModelError(
            f"rollout hf: weight {name!r} has shape {tuple(tensor.shape)}, expected {tuple(slot.shape)}"
        )
    if slot.data_ptr() == tensor.data_ptr() and slot.dtype == tensor.dtype:
        return isinstance(tensor, nn.Parameter)
    shareable = isinstance(tensor, nn.Parameter) and tensor.dtype == slot.dtype
    if shareable and tensor.device == slot.device:
        slot.data = tensor.data
        return True
    copy_into(slot, tensor)
    return False
