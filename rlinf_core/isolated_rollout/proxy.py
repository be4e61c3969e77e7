"""A rollout engine whose work is done by another process: the side that the worker holds."""

from __future__ import annotations

import math
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.api.rollout import RolloutEngine
from rlinf_core.errors import ModelError, PluginError
from rlinf_core.isolated_rollout.engine import Setup
from rlinf_core.isolated_rollout.link import Link
from rlinf_core.isolated_rollout.memory import WeightMemory
from rlinf_core.isolated_rollout.names import sent_name
from rlinf_core.isolated_rollout.protocol import VERSION, Kind, pack_jobs
from rlinf_core.isolated_rollout.rows import Row
from rlinf_core.isolation.process import ChildProcess
from rlinf_core.isolation.values import encode

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api import LoRAConfig, Model, WeightBucket
    from rlinf_core.isolation.program import Program
    from rlinf_core.types import Request, Sample, Sampling

SERVER = "rlinf_core.isolated_rollout.serve"
_SOON_S = 0.02  # until the next look for requests, where there was none at the moment
AHEAD = 2  # times the engine's capacity: requests that are handed over, so that it never waits for one


class IsolatedRollout(RolloutEngine):
    """Requests go over as they come and samples come back as they end. `load_weights` and `abort` may be
    called by another thread while `generate` runs: what is being written is then interrupted, and after an
    update it goes on with the new weights. Raises `WorkerError` for a process that dies, hangs or fails."""

    def __init__(
        self,
        config: Any,  # Any: each plugin has its own config dataclass
        model: Model,
        lora: LoRAConfig,
        device: str = "cpu",
        seed: int = 0,
        *,
        name: str,
        target: str,
        program: Program,
        timeout_s: float = 120.0,
    ) -> None:
        super().__init__(config, model, lora, device, seed)
        self.name = name
        self._rows: dict[int, Row] = {}  # in the engine
        self._finished: deque[Sample] = deque()
        self._numbers = 0
        self._aborted = False
        self._asleep = False
        self._state = threading.RLock()
        self._memory = WeightMemory()
        self._folder = Path(tempfile.mkdtemp(prefix="rlinf-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        said = {"version": VERSION, "target": target, "config": encode(config, "rollout")}
        try:
            said["setup"] = encode(self._setup(), "rollout")
            process = ChildProcess(program, SERVER, self._memory.descriptor, name)
        except OSError as err:
            raise PluginError(f"rollout {name}: {program.python}: {err}") from err
        self._link = Link(process, name, timeout_s)
        weakref.finalize(self, process.kill)
        try:
            hello = self._link.start(said)
        except BaseException:
            self.close()
            raise
        self.capacity: int = hello["capacity"]
        self.dtype: str = hello["dtype"]
        self.versions: dict[str, str] = hello["versions"]  # of packages in its environment

    @property
    def pid(self) -> int:
        """Of the engine's process."""
        return self._link.process.pid

    def weight_dtype(self) -> str:
        """As the engine has said."""
        return self.dtype

    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Install one weight version. `version` is set last, so that a failed update leaves none. Raises
        `ModelError` if what the engine has installed is not what was sent."""
        self.onload()
        self.version = -1
        self._link.send(Kind.BEGIN)
        version, digests, asked = -1, dict[str, int](), deque[int]()
        for number, bucket in enumerate(buckets):
            tensors = self._named(bucket)
            version = bucket.version
            keep = 1 if self._memory.fits(tensors, self.dtype) else 0
            while len(asked) > keep:  # the half to be filled has been read
                self._link.answer(asked.popleft())
            told, sums = self._memory.write(tensors, self.dtype, number % 2)
            digests |= sums
            asked.append(self._link.ask(Kind.BUCKET, **told))
        for each in asked:
            self._link.answer(each)
        self.verified = self._link.call(Kind.FINISH, weights=version, digests=digests)
        with self._state:
            self._absorb()
            self.version = version
            self._hand_over(list(self._rows.items()))
        return version

    def generate(self, requests: Iterable[list[Request]], sampling: Sampling) -> Iterator[list[Sample]]:
        """Finished samples as they finish. Raises `ModelError` for a prompt that leaves no room."""
        if self.version < 0:
            raise ModelError(f"rollout {self.name}: generate before load_weights; no weight version is there")
        self.onload()
        source = iter(requests)
        self._aborted, more, later = False, True, False
        try:
            while more or self._rows or self._finished:
                while more and not self._aborted and len(self._rows) < AHEAD * self.capacity:
                    chunk = next(source, None)
                    more = chunk is not None
                    later = chunk == []  # others may have something to ask soon
                    if not chunk:
                        break
                    self._admit(chunk, sampling)
                more = more and not self._aborted
                samples = self._collect(_SOON_S if later else math.inf)
                if samples:
                    yield samples
        finally:
            self._forget()

    def abort(self) -> list[Request]:
        """Those that were taken and not answered, with what was drawn for them."""
        with self._state:
            self._aborted = True
            self._link.call(Kind.ABORT, numbers=list(self._rows))
            self._absorb()
            left = [row.begun() for row in self._rows.values()]
            self._rows.clear()
        return left

    def memory_bytes(self) -> float:
        """As the engine says."""
        found: float = self._link.call(Kind.CALL, method="memory_bytes")
        return found

    def onload(self) -> None:
        """Wake the engine."""
        if self._asleep:
            self._link.call(Kind.CALL, method="wake")
            self._asleep = False

    def offload(self) -> None:
        """Let the engine sleep."""
        if not self._asleep:
            self._link.call(Kind.CALL, method="sleep")
            self._asleep = True

    def close(self) -> None:
        """The process has ended when this returns."""
        self._link.close()
        self._memory.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _setup(self) -> Setup:
        processor = self.model.processor()
        self.model.export_architecture(self._folder)
        return Setup(
            folder=str(self._folder),
            eos_ids=tuple(sorted(processor.eos_ids)),
            pad_id=processor.pad_id,
            context_length=processor.context_length,
            device=self.device,
            seed=self.seed,
            lora=self.lora,
        )

    def _named(self, bucket: WeightBucket) -> dict[str, Tensor]:
        """By the names that the engine knows, without what only training needs."""
        named = {sent_name(name, self.model): tensor for name, tensor in bucket.tensors.items()}
        return {name: tensor for name, tensor in named.items() if name is not None}

    def _admit(self, requests: Sequence[Request], sampling: Sampling) -> None:
        with self._state:
            added = []
            for request in requests:
                self._check(request, sampling)
                self._numbers += 1
                added.append((self._numbers, Row.of(request, sampling)))
            self._rows.update(added)
            if self.version >= 0:  # else they go over after the update
                self._hand_over(added)

    def _hand_over(self, rows: Sequence[tuple[int, Row]]) -> None:
        if not rows:
            return
        sampling = rows[0][1].sampling
        told = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k")}
        jobs = pack_jobs([row.job(number) for number, row in rows])
        self._link.send(Kind.ADD, {"sampling": told, "stream": bool(sampling.stop)}, jobs)

    def _collect(self, longest_s: float) -> list[Sample]:
        """What has ended, after waiting for something to happen, or so long."""
        if self._rows and not self._finished:
            self._link.wait_for_progress(lambda: bool(self._finished) or self._aborted, longest_s)
        with self._state:
            self._absorb()
            samples = list(self._finished)
            self._finished.clear()
        return samples

    def _absorb(self) -> None:
        """Take progress into the rows."""
        processor, cut = self.model.processor(), []
        while self._link.made:
            made = self._link.made.popleft()
            number = made.progress.number
            row = self._rows.get(number)
            if row is None:  # its response has ended, by a text
                continue
            finish = row.take(made, processor)
            if finish is None or finish == "abort":
                continue
            if made.progress.finish is None:
                cut.append(number)
            del self._rows[number]
            self._finished.append(row.sample(finish, processor))
        if cut:
            self._link.send(Kind.ABORT, {"numbers": cut})

    def _forget(self) -> None:
        """Nobody takes what is still being written."""
        with self._state:
            numbers = list(self._rows)
            self._rows.clear()
            if numbers and self._link.alive:
                self._link.send(Kind.ABORT, {"numbers": numbers})

    def _check(self, request: Request, sampling: Sampling) -> None:
        context = self.model.processor().context_length
        length = len(request.prompt.token_ids)
        index = request.prompt.index
        if request.prompt.images:
            raise ModelError(
                f"rollout {self.name}: prompt {index} has images, which this engine is not given; "
                "choose another rollout engine"
            )
        if not length:
            raise ModelError(f"rollout {self.name}: prompt {index} has no tokens")
        if length + sampling.max_new_tokens > context:
            raise ModelError(
                f"rollout {self.name}: prompt {index} has {length} tokens and sampling.max_new_tokens is "
                f"{sampling.max_new_tokens}; together {length + sampling.max_new_tokens}, but the model's "
                f"context is {context}. Lower sampling.max_new_tokens or set train.max_prompt_tokens"
            )
