"""An isolated engine over the model of eight tokens, which can be told to die, hang, raise or forget."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rlinf_core.errors import ModelError
from rlinf_core.isolated_rollout.buckets import Bucket, digest
from rlinf_core.isolated_rollout.engine import Hello, Installed, IsolatedEngine, Job, Progress, Setup
from rlinf_core.rl.logprobs import apply_sampling_transform, gather_logprobs
from rlinf_core.testing.fakes import RecurrentModule
from rlinf_core.types import Sampling


@dataclass(frozen=True)
class LettersConfig:
    """`at_step` is when `fault` happens: "die", "hang", "stop", "raise"; or at once: "refuse"."""

    capacity: int = 4
    fault: str = ""
    at_step: int = 3
    forgets: str = ""  # a weight that updates pass over
    dtype: str = "float32"
    started: str = ""  # a file that gets the process's number


@dataclass
class Running:
    """A job and what was drawn for it."""

    job: Job
    sampling: Sampling
    stream: bool
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reported: int = 0

    def progress(self, finish: str | None) -> Progress:
        since, self.reported = self.reported, len(self.tokens)
        return Progress(self.job.number, self.tokens[since:], self.logprobs[since:], finish)  # type: ignore[arg-type]


class LettersEngine(IsolatedEngine):
    """Reads every row anew for each token."""

    config: LettersConfig

    def __init__(self, config: LettersConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        if config.fault == "refuse":
            raise ModelError("the letters are not served here")
        if config.started:
            Path(config.started).write_text(str(os.getpid()))
        self.module = RecurrentModule().to(getattr(torch, config.dtype))
        self.running: dict[int, Running] = {}
        self.steps = 0

    def hello(self) -> Hello:
        return Hello(self.config.capacity, self.config.dtype, {"torch": torch.__version__})

    def add(self, jobs: Sequence[Job], sampling: Sampling, *, stream: bool) -> None:
        for job in jobs:
            generator = torch.Generator().manual_seed(job.seed)
            self.running[job.number] = Running(job, sampling, stream, generator)

    @torch.no_grad()
    def step(self) -> list[Progress]:
        self.steps += 1
        if self.steps == self.config.at_step:
            self._fail()
        made = []
        for running in list(self.running.values())[: self.config.capacity]:
            finish = self._draw(running)
            if finish is not None or running.stream:
                made.append(running.progress(finish))
            if finish is not None:
                del self.running[running.job.number]
        return made

    def abort(self, numbers: Sequence[int]) -> list[Progress]:
        return [self.running.pop(number).progress("abort") for number in numbers]

    def load(self, bucket: Bucket) -> None:
        own = dict(self.module.named_parameters())
        for name, tensor in bucket.tensors().items():
            if name != self.config.forgets:
                own[name].data.copy_(tensor)

    def finish_update(self) -> list[Installed]:
        return [Installed((name,), digest([tensor])) for name, tensor in self.module.named_parameters()]

    def memory_bytes(self) -> float:
        return 4.0 * sum(parameter.numel() for parameter in self.module.parameters())

    def _draw(self, running: Running) -> str | None:
        hidden_1H = self.module.start(1)
        for token in [*running.job.token_ids, *running.tokens]:
            hidden_1H = self.module.advance(hidden_1H, torch.tensor([token]))
        logits_1V = self.module.head(hidden_1H)
        ends = list(self.setup.eos_ids)
        if len(running.tokens) < running.job.least:
            logits_1V[:, ends] = -torch.inf
        logits_1V = apply_sampling_transform(logits_1V, running.sampling)
        if running.sampling.temperature == 0:
            token_1 = logits_1V.argmax(-1)
        else:
            token_1 = torch.multinomial(torch.softmax(logits_1V, -1), 1, generator=running.generator)[:, 0]
        running.tokens.append(int(token_1))
        running.logprobs.append(float(gather_logprobs(logits_1V, token_1)))
        if running.tokens[-1] in ends:
            return "stop"
        return "length" if len(running.tokens) == running.job.most else None

    def _fail(self) -> None:
        print("letters: about to", self.config.fault or "go on", file=sys.stderr, flush=True)
        if self.config.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.config.fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.config.fault == "hang":
            time.sleep(600)
        if self.config.fault == "raise":
            raise ValueError("no letter comes to mind")
