"""A plain rollout engine: the smallest whole `RolloutEngine`, to start a new one from.

Axes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf_core.api import LoRAConfig, Model, RolloutEngine, WeightBucket
from rlinf_core.errors import ConfigError, ModelError
from rlinf_core.responses import sample_of
from rlinf_core.rl.logprobs import apply_sampling_transform, gather_logprobs
from rlinf_core.types import Request, Sample, Sampling


class SimpleRollout(RolloutEngine):
    """Generates one response after the other; override `draw` for another way to choose a token."""

    def __init__(
        self, config: Any, model: Model, lora: LoRAConfig, device: str = "cpu", seed: int = 0
    ) -> None:  # Any: each plugin has its own config dataclass
        super().__init__(config, model, lora, device, seed)
        if lora.rank:
            raise ConfigError(
                f"lora.rank: {lora.rank}, but {type(self).__name__} has no adapters; set it to 0"
            )
        self.module = model.module(seed).eval().requires_grad_(False).to(device)
        self.decoder = model.decoder(self.module, 1, model.processor().context_length)

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Copy tensors into the module. `version` is set last: a failed update leaves none."""
        version, self.version = -1, -1
        own = {**dict(self.module.named_buffers()), **dict(self.module.named_parameters())}
        for bucket in buckets:
            for name, value in bucket.tensors.items():
                if name not in own:
                    raise ModelError(f"received weight {name!r}, which the model does not have")
                own[name].data.copy_(value)
            version = bucket.version
        self.decoder.refresh()
        self.version = version
        return version

    def generate(self, requests: Iterable[list[Request]], sampling: Sampling) -> Iterator[list[Sample]]:
        """One finished sample at a time."""
        if self.version < 0:
            raise ModelError("generate before load_weights: no weight version is installed")
        for chunk in requests:
            for request in chunk:
                yield [self._sample(request, sampling)]

    def draw(self, logits_1V: Tensor, generator: torch.Generator, sampling: Sampling) -> Tensor:
        """The next token `[1]`; `logits_1V` are transformed already."""
        if sampling.temperature == 0:
            return logits_1V.argmax(-1)
        return torch.multinomial(torch.softmax(logits_1V, -1), 1, generator=generator)[:, 0]

    @torch.no_grad()
    def _sample(self, request: Request, sampling: Sampling) -> Sample:
        processor = self.model.processor()
        generator = torch.Generator(self.device).manual_seed(request.seed)
        tokens: list[int] = []
        logprobs: list[float] = []
        finished = False
        logits_1V = self.decoder.prefill_prompts([0], [request.prompt])
        while True:
            if len(tokens) < sampling.min_new_tokens:
                logits_1V[:, list(processor.eos_ids)] = -torch.inf
            logits_1V = apply_sampling_transform(logits_1V, sampling)
            token_1 = self.draw(logits_1V, generator, sampling)
            tokens.append(int(token_1))
            logprobs.append(float(gather_logprobs(logits_1V, token_1)))
            finished = tokens[-1] in processor.eos_ids or self._stopped(tokens, sampling)
            if finished or len(tokens) >= sampling.max_new_tokens:
                break
            logits_1V = self.decoder.step([0], token_1)
        self.decoder.release([0])
        return sample_of(
            request,
            np.array(tokens, dtype=np.int64),
            np.array(logprobs, dtype=np.float32),
            np.full(len(tokens), self.version),
            "stop" if finished else "length",
            processor.decode(tokens),
        )

    def _stopped(self, tokens: list[int], sampling: Sampling) -> bool:
        if not sampling.stop or len(tokens) < sampling.min_new_tokens:
            return False
        text = self.model.processor().decode(tokens)
        return any(stop in text for stop in sampling.stop)
