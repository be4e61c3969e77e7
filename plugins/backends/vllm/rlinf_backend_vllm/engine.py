"""The `vllm` rollout engine, in its own environment: vLLM's `LLM`, driven step by step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rlinf_backend_vllm import release
from rlinf_backend_vllm.arguments import arguments, visible_devices
from rlinf_core.errors import ModelError
from rlinf_core.isolated_rollout.adapters import AdapterFolders
from rlinf_core.isolated_rollout.engine import Hello, Installed, IsolatedEngine, Job, Progress, Setup
from rlinf_core.isolated_rollout.fitting import refuse_unserved

if TYPE_CHECKING:
    from rlinf_backend_vllm.config import VLLMConfig
    from rlinf_core.isolated_rollout.buckets import Bucket
    from rlinf_core.types import FinishReason, Sampling

FINISHES: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class VLLMEngine(IsolatedEngine):
    """Requests join and leave between steps; the library's classes are used as they are published."""

    config: VLLMConfig

    def __init__(self, config: VLLMConfig, setup: Setup) -> None:
        super().__init__(config, setup)
        self.release = release.adapter()
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if setup.device != "cpu":
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices(config, setup, visible)
        from vllm import LLM

        settings = arguments(config, setup)
        try:
            self.llm = LLM(**settings)
        except (ValueError, NotImplementedError) as err:  # how vLLM refuses a model or a setting
            refuse_unserved(err, setup, "vllm", "vLLM")
        self.engine: Any = self.llm.llm_engine  # Any: vLLM is typed in part
        self.adapters = AdapterFolders(setup.folder, setup.lora)
        self.adapter: Any = None  # Any: the LoRARequest that requests are answered with
        self.updates = 0
        self._streams: set[int] = set()
        self._warm_up()

    def hello(self) -> Hello:
        """With vLLM's version and torch's."""
        import torch

        dtype = str(self.engine.model_config.dtype).removeprefix("torch.")
        versions = {"vllm": release.installed(), "torch": torch.__version__}
        return Hello(self.config.max_running, dtype, versions)

    def add(self, jobs: Sequence[Job], sampling: Sampling, *, stream: bool) -> None:
        """Hand them to the scheduler, which admits them between steps."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        for job in jobs:
            params = SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=job.most,
                min_tokens=job.least,
                seed=job.seed,
                ignore_eos=True,
                stop_token_ids=list(self.setup.eos_ids),
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
            )
            prompt = {"prompt_token_ids": job.token_ids}
            self.engine.add_request(str(job.number), prompt, params, lora_request=self.adapter)
        if stream:
            self._streams |= {job.number for job in jobs}

    def step(self) -> list[Progress]:
        """One step of the scheduler and the model."""
        made = []
        for output in self.engine.step():
            completion = output.outputs[0]
            finish = FINISHES[completion.finish_reason] if output.finished else None
            number = int(output.request_id)
            if finish is not None:
                self._check_version(completion)
                self._streams.discard(number)
            logprobs = completion.logprobs.logprobs if completion.token_ids else []
            made.append(Progress(number, completion.token_ids, logprobs, finish))
        return made

    def abort(self, numbers: Sequence[int]) -> list[Progress]:
        """What was drawn is read from the state that outputs are made of: an aborted request gives none."""
        made = []
        for number in numbers:
            tokens, logprobs = ([], []) if number in self._streams else self._unreported(str(number))
            made.append(Progress(number, tokens, logprobs, "abort"))
        self.engine.abort_request([str(number) for number in numbers])
        self._streams -= set(numbers)
        return made

    def load(self, bucket: Bucket) -> None:
        """In every worker; adapters are kept until all are there."""
        self.llm.collective_rpc("rlinf_load", args=(bucket.to_plain(),))
        self.adapters.keep(bucket.tensors())

    def finish_update(self) -> list[Installed]:
        """New adapters, no cache of older weights, and digests over all workers."""
        found = self.llm.collective_rpc("rlinf_finish")
        self._install_adapter()
        if not self.engine.reset_prefix_cache():
            raise ModelError("rollout vllm: the cache of prompts could not be emptied after an update")
        self.updates += 1
        self.release.label(self.engine, self.updates)
        return _merged(cast("list[Any]", found))

    def sleep(self) -> None:
        """Weights go to host memory and the cache is freed; on the CPU vLLM has no such thing."""
        if self.setup.device != "cpu":
            self.llm.sleep(level=1)

    def wake(self) -> None:
        """As they were; the cache is empty."""
        if self.setup.device != "cpu":
            self.llm.wake_up()

    def memory_bytes(self) -> float:
        """Weights and cache, over all workers."""
        return float(sum(cast("list[int]", self.llm.collective_rpc("rlinf_memory"))))

    def _install_adapter(self) -> None:
        """In place of the one before."""
        from vllm.lora.request import LoRARequest

        folder = self.adapters.write()
        if folder is None:
            return
        number = self.adapters.number
        before, self.adapter = self.adapter, LoRARequest(f"policy-{number}", number, str(folder))
        if before is not None:
            self.engine.remove_lora(before.lora_int_id)
        self.engine.add_lora(self.adapter)
        shutil.rmtree(folder)

    def _unreported(self, request_id: str) -> tuple[list[int], list[float]]:
        processor = self.engine.output_processor
        for internal in processor.external_req_ids.get(request_id, ()):
            state = processor.request_states[internal]
            drawn = list(state.detokenizer.output_token_ids)
            return drawn, list(state.logprobs_processor.logprobs.logprobs)[: len(drawn)]
        return [], []

    def _check_version(self, completion: Any) -> None:  # Any: a completion of vLLM
        labels = self.release.labels(completion)
        if labels is not None and labels - {self.updates}:
            raise ModelError(
                f"rollout vllm: a response has tokens of updates {sorted(labels)}, all should be of "
                f"{self.updates}"
            )

    def _warm_up(self) -> None:
        """One token, so that what the device has no kernel for is said before anything else is done."""
        from vllm import SamplingParams

        self.llm.collective_rpc("rlinf_prepare")
        prompt: Any = {"prompt_token_ids": [min(self.setup.eos_ids)]}  # Any: a typed dict of vLLM
        try:
            self.llm.generate([prompt], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
        except RuntimeError as err:
            refuse_unserved(err, self.setup, "vllm", "vLLM")
        self.engine.reset_prefix_cache()


def _merged(by_worker: list[list[list[Any]]]) -> list[Installed]:
    """Workers of one layer hold parts of its weights, or all of them."""
    totals: dict[tuple[str, ...], list[int]] = {}
    for found in by_worker:
        for names, digest in found:
            totals.setdefault(tuple(names), []).append(digest)
    return [Installed(names, sum(digests) % 2**64, len(digests)) for names, digests in totals.items()]
