"""The `sglang` rollout engine, in its own environment: SGLang's `Engine`, with a task for each job."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlinf_backend_sglang import release
from rlinf_backend_sglang.arguments import arguments
from rlinf_backend_sglang.sampling import parts
from rlinf_backend_sglang.updates import Updates
from rlinf_core.errors import ConfigError, ModelError, PluginError
from rlinf_core.isolated_rollout.engine import Hello, Installed, IsolatedEngine, Job, Progress, Setup
from rlinf_core.isolated_rollout.fitting import GIB, refuse_unserved

if TYPE_CHECKING:
    from rlinf_backend_sglang.config import SGLangConfig
    from rlinf_core.isolated_rollout.buckets import Bucket
    from rlinf_core.types import FinishReason, Sampling

VARIABLES = {
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the tokens that it keeps free
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",  # after temperature, as in training
}
LOOK_S = 0.05  # after which new jobs are looked for, though nothing was drawn
QUIET_S = 10.0  # without a token, after which a step does not end before there is one: so the wait is seen
END_S = 30.0  # that SGLang may take to end a request


class SGLangEngine(IsolatedEngine):
    """SGLang's processes draw by themselves; a step takes in what they have told since the last one."""

    config: SGLangConfig

    def __init__(self, config: SGLangConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.release = release.adapter()
        self.arguments = arguments(config, setup)
        self.engine: Any = _launched(self.arguments, setup)  # Any: SGLang is typed in part
        self.loop: asyncio.AbstractEventLoop = self.engine.loop
        processes = config.tensor_parallel_size * config.pipeline_parallel_size
        self.updates = Updates(self.engine, self.release, setup, processes)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._asked: dict[int, str] = {}  # job -> SGLang's name of its request
        self._ending: set[int] = set()
        self._made: list[Progress] = []
        self._failure: BaseException | None = None
        self._news = asyncio.Event()
        self._heard = time.monotonic()

    def hello(self) -> Hello:
        """With SGLang's version and torch's."""
        import torch

        versions = {"sglang": release.installed(), "torch": torch.__version__}
        return Hello(self.config.max_running, self.arguments["dtype"], versions)

    def add(self, jobs: Sequence[Job], sampling: Sampling, *, stream: bool) -> None:
        """As tasks; SGLang admits as many as it has room for."""
        if not self._tasks:
            self._heard = time.monotonic()
        for job in jobs:
            task = self.loop.create_task(self._write(job, sampling, stream))
            task.add_done_callback(lambda task, number=job.number: self._done(number, task))  # type: ignore[misc]
            self._tasks[job.number] = task

    def step(self) -> list[Progress]:
        """What was drawn since the last one."""
        if not self._made and self._failure is None:
            self.loop.run_until_complete(self._wait())
        return self._take()

    def abort(self, numbers: Sequence[int]) -> list[Progress]:
        """SGLang draws one more token of what it is told to end."""
        ended = set(numbers)
        self._ending |= ended
        self.loop.run_until_complete(self._end(numbers))
        self._ending -= ended
        made = self._take()
        self._made = [each for each in made if each.number not in ended]
        return [each for each in made if each.number in ended]

    def load(self, bucket: Bucket) -> None:
        """In every process of SGLang."""
        self.updates.load(bucket)

    def finish_update(self) -> list[Installed]:
        """Digests over all processes of SGLang."""
        return self.updates.finish()

    def sleep(self) -> None:
        """Weights go to host memory and the cache is freed."""
        if self.setup.device != "cpu":
            self.updates.settle()
            self.engine.release_memory_occupation()

    def wake(self) -> None:
        """As they were; the cache is empty."""
        if self.setup.device != "cpu":
            self.engine.resume_memory_occupation()

    def memory_bytes(self) -> float:
        """Weights, cache and graphs of one process of SGLang, times their number."""
        told = self.engine.get_server_info()["internal_states"][0]["memory_usage"]
        graph = told["graph"]
        graphs = sum(graph.values()) if isinstance(graph, dict) else graph or 0.0
        return float(told["weight"] + told["kvcache"] + graphs) * GIB * self.updates.processes

    def close(self) -> None:
        """End SGLang's processes."""
        self.engine.shutdown()

    async def _write(self, job: Job, sampling: Sampling, stream: bool) -> None:
        drawn: list[int] = []
        finish: FinishReason = "length"
        settings = parts(job, sampling, self.setup.eos_ids, stream=stream, seeded=self.config.deterministic)
        for index, part in enumerate(settings):
            if job.number in self._ending:
                finish = "abort"
            if finish != "abort":
                self._asked[job.number] = f"{job.number:016d}-{index}"  # no name begins with another
                finish = await self._draw(job, drawn, part)
        self._report(Progress(job.number, [], [], finish))

    async def _draw(self, job: Job, drawn: list[int], settings: dict[str, Any]) -> FinishReason:
        """Report tokens as they come, and add them to `drawn`. Any: values of settings."""
        outputs = await self.engine.async_generate(
            input_ids=[*job.token_ids, *drawn],
            sampling_params=settings,
            return_logprob=True,
            stream=True,
            rid=self._asked[job.number],
            lora_path=self.updates.adapter,
        )
        taken = 0
        kind = ""
        async for output in outputs:
            reason = output["meta_info"]["finish_reason"]
            kind = reason["type"] if reason else ""
            if kind == "abort" and job.number not in self._ending:
                raise ModelError(f"rollout sglang: SGLang ended a request: {reason.get('message')}")
            tokens, logprobs = _drawn(output, kind)
            if len(tokens) > taken:
                self._report(Progress(job.number, tokens[taken:], logprobs[taken:]))
                drawn += tokens[taken:]
                taken = len(tokens)
        if kind == "abort":
            return "abort"
        return "stop" if drawn and drawn[-1] in self.setup.eos_ids else "length"

    async def _wait(self) -> None:
        quiet = time.monotonic() - self._heard >= QUIET_S
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), None if quiet else LOOK_S)

    async def _end(self, numbers: Sequence[int]) -> None:
        """Ask again for those that SGLang had not heard of yet."""
        end = time.monotonic() + END_S
        while tasks := [self._tasks[number] for number in numbers if number in self._tasks]:
            for number in self._tasks.keys() & set(numbers) & self._asked.keys():
                self.engine.tokenizer_manager.abort_request(rid=self._asked[number])
            await asyncio.wait(tasks, timeout=LOOK_S)
            if time.monotonic() >= end:
                raise ModelError(f"rollout sglang: SGLang did not end {len(tasks)} requests in {END_S:g} s")

    def _report(self, progress: Progress) -> None:
        self._made.append(progress)
        self._heard = time.monotonic()
        self._news.set()

    def _done(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        self._asked.pop(number, None)
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()
            self._news.set()

    def _take(self) -> list[Progress]:
        if self._failure is not None:
            raise self._failure
        made, self._made = self._made, []
        self._news.clear()
        return made


def _launched(settings: dict[str, Any], setup: Setup) -> Any:  # Any: values of settings; SGLang's engine
    os.environ.update(VARIABLES)
    try:
        import sglang
    except ImportError as err:
        raise PluginError(
            f"rollout sglang: SGLang {release.installed()} does not import in this environment: {err}; it "
            "needs a CUDA device, and the packages that its own distribution asks for"
        ) from err
    try:
        return sglang.Engine(**settings)
    except (AssertionError, NotImplementedError, ValueError) as err:  # how SGLang refuses
        if setup.device == "cpu" and "deterministic inference" in str(err):
            raise ConfigError(
                "rollout.deterministic (sglang): SGLang has no deterministic inference on processors: "
                f"{err}; set rollout.deterministic=false, with which responses do not follow from their seeds"
            ) from err
        refuse_unserved(err, setup, "sglang", "SGLang")


def _drawn(output: dict[str, Any], kind: str) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities since the request began. A request that ends while it waits comes
    with the last of its tokens alone. Any: as SGLang gives it."""
    tokens = output["output_ids"]
    logprobs = [each[0] for each in output["meta_info"].get("output_token_logprobs", [])]
    if kind == "abort" and len(tokens) != len(logprobs):
        return [], []
    both = min(len(tokens), len(logprobs))
    return list(tokens[:both]), logprobs[:both]
