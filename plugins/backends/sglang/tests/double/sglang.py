"""A double of SGLang for tests on the CPU: its `Engine` as far as the adapter calls it, over transformers.

`test_sglang_signatures.py` compares names and keywords here with SGLang's own source. It behaves as that
does: requests are drawn by another thread, outputs hold all tokens since the request began and come
every so many of them, names to end are prefixes, one more token is drawn of what is told to end, what
ends while it waits comes with its last token alone, two tokens of the context stay free, and after the
last response it takes a moment until it is idle. Axes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import pickle
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__version__ = metadata.version("sglang")
SESSIONS = __version__ == "0.5.23"
ARGUMENTS = {
    *("model_path", "skip_tokenizer_init", "load_format", "custom_weight_loader", "dtype", "context_length"),
    *("max_running_requests", "tp_size", "pp_size", "disable_radix_cache", "disable_cuda_graph"),
    *("enable_deterministic_inference", "random_seed", "log_level", "mem_fraction_static", "device"),
    *("base_gpu_id", "enable_memory_saver", "enable_weights_cpu_backup", "enable_lora", "max_lora_rank"),
    *("lora_target_modules", "max_loras_per_batch", "attention_backend", "sampling_backend"),
}
SAMPLING = {
    *("max_new_tokens", "stop_token_ids", "temperature", "ignore_eos", "logit_bias", "sampling_seed"),
    "stream_interval",
}


@dataclass
class Answer:
    """Of what SGLang answers with an object."""

    success: bool
    error_message: str | None = None


@dataclass
class State:
    """A request."""

    rid: str
    ids: list[int]
    params: dict[str, Any]
    adapter: str | None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, int, None]] = field(default_factory=list)
    started: bool = False
    finish: dict[str, Any] | None = None
    ending: bool = False


class Model(nn.Module):
    """The architecture of a folder, with SGLang's way of loading weights."""

    def __init__(self, folder: str, dtype: str) -> None:
        super().__init__()
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(99)  # weights that no trainer has
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
        self.whole = made.to(getattr(torch, dtype)).eval()

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return self.whole.named_parameters(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        return self.whole.named_modules(*args, **kwargs)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        known = dict(self.named_parameters())
        for name, tensor in weights:
            if name in known:
                known[name].data.copy_(tensor)
            else:
                warnings.warn(f"Parameter {name} not found in params_dict", stacklevel=2)

    @torch.no_grad()
    def next_logits_BV(self, rows: list[list[int]]) -> Tensor:
        longest = max(map(len, rows))
        ids_BT = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        logits_BTV = self.whole(ids_BT).logits
        return logits_BTV[torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])]


class Scheduler(threading.Thread):
    """Draws a token of every running request, over and over."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(daemon=True)
        self.engine = engine
        self.model = Model(engine.arguments["model_path"], engine.arguments["dtype"])
        self.lock = threading.RLock()
        self.waiting: list[State] = []
        self.running: list[State] = []
        self.busy_until = 0.0
        self.generator = torch.Generator().manual_seed(engine.arguments["random_seed"])

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running and time.monotonic() >= self.busy_until

    def run(self) -> None:
        while True:
            with self.lock:
                room = self.engine.arguments["max_running_requests"] - len(self.running)
                self.running += self.waiting[:room]
                del self.waiting[:room]
                if self.running:
                    self._step()
                    self.busy_until = time.monotonic() + 0.02
            time.sleep(0.0005)

    def abort(self, rid: str) -> None:
        with self.lock:
            for state in [each for each in self.waiting if each.rid.startswith(rid)]:
                self.waiting.remove(state)
                state.finish = {"type": "abort", "message": "Abort in waiting queue"}
                self._tell(state, state.drawn[-1:])
            for state in self.running:
                state.ending |= state.rid.startswith(rid)

    def _step(self) -> None:
        logits_BV = self.model.next_logits_BV([state.ids + state.drawn for state in self.running])
        for state, logits_V in zip(self.running, logits_BV, strict=True):
            self._draw(state, logits_V)
            every = state.params["stream_interval"]
            due = len(state.drawn) % every == 1 if every > 1 else True
            if state.finish is not None or due:
                self._tell(state, state.drawn)
        self.running = [state for state in self.running if state.finish is None]

    def _draw(self, state: State, logits_V: Tensor) -> None:
        for token, bias in state.params.get("logit_bias", {}).items():
            logits_V[int(token)] += bias
        temperature = state.params["temperature"]
        logprobs_V = torch.log_softmax(logits_V.float() / (temperature or 1.0), -1)
        token = int((logprobs_V + self._noise_V(state, logprobs_V) * bool(temperature)).argmax())
        state.drawn.append(token)
        state.logprobs.append((float(logprobs_V[token]), token, None))
        state.finish = self._finish(state, token)

    def _noise_V(self, state: State, logprobs_V: Tensor) -> Tensor:
        generator = self.generator
        if self.engine.arguments["enable_deterministic_inference"]:
            seed = state.params.get("sampling_seed", 42)
            position = len(state.ids) + len(state.drawn)
            generator = torch.Generator().manual_seed(hash((seed, position)) % 2**63)
        uniform_V = torch.rand(logprobs_V.shape, generator=generator, dtype=torch.float64)
        return -torch.log(-torch.log(uniform_V.clamp(1e-12, 1 - 1e-12)))

    def _finish(self, state: State, token: int) -> dict[str, Any] | None:
        if state.ending:
            return {"type": "abort", "message": "Aborted"}
        length = len(state.drawn) >= state.params["max_new_tokens"]
        stop = not state.params["ignore_eos"] and token in state.params["stop_token_ids"]
        if stop and (SESSIONS or not length):
            return {"type": "stop", "matched": token}
        return {"type": "length", "length": len(state.drawn)} if length else None

    def _tell(self, state: State, ids: list[int]) -> None:
        told = {"finish_reason": state.finish, "completion_tokens": len(state.drawn)}
        output = {"output_ids": list(ids), "meta_info": {**told, "output_token_logprobs": state.logprobs}}
        self.engine.loop.call_soon_threadsafe(self._arrive, state, output)

    @staticmethod
    def _arrive(state: State, output: dict[str, Any]) -> None:
        state.outputs.append(output)
        state.news.set()


class TokenizerManager:
    """Knows the requests that are not answered."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.rid_to_state: dict[str, State] = {}

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        if abort_all or rid in self.rid_to_state:
            self.scheduler.abort("" if abort_all else rid)


class Engine:
    """As in `sglang.srt.entrypoints.engine`."""

    def __init__(self, **kwargs: Any) -> None:
        unknown = kwargs.keys() - ARGUMENTS
        if unknown:
            raise TypeError(f"unexpected arguments {sorted(unknown)}")
        self.arguments = kwargs
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.calls: list[str] = []
        self.session = False
        self.adapters: dict[str, tuple[dict[str, Any], list[str]]] = {}
        self.scheduler = Scheduler(self)
        self.tokenizer_manager = TokenizerManager(self.scheduler)
        self.scheduler.start()

    async def async_generate(
        self,
        *,
        input_ids: list[int],
        sampling_params: dict[str, Any],
        return_logprob: bool = False,
        lora_path: str | None = None,
        stream: bool = False,
        rid: str = "",
    ) -> AsyncIterator[dict[str, Any]]:
        unknown = sampling_params.keys() - SAMPLING
        if unknown or not return_logprob or not stream:
            raise TypeError(f"unexpected keyword arguments {sorted(unknown)}")
        if lora_path != next(iter(self.adapters), None):
            raise ValueError(f"no adapter {lora_path}; there are {sorted(self.adapters)}")
        return self._wait(State(rid, list(input_ids), dict(sampling_params), lora_path))

    async def _wait(self, state: State) -> AsyncIterator[dict[str, Any]]:
        await asyncio.sleep(0.005)  # it takes a moment until a request is known
        context = self.arguments["context_length"]
        total = len(state.ids) + state.params["max_new_tokens"]
        if total > context or (total == context and not SESSIONS):
            raise ValueError("Requested token count exceeds the model's maximum context length")
        most = context - 1 - len(state.ids) - 1
        state.params["max_new_tokens"] = min(state.params["max_new_tokens"], most)
        self.tokenizer_manager.rid_to_state[state.rid] = state
        with self.scheduler.lock:
            self.scheduler.waiting.append(state)
        finished = False
        while not finished:
            await state.news.wait()
            state.news.clear()
            output = state.outputs[-1]
            finished = output["meta_info"]["finish_reason"] is not None
            if finished:
                del self.tokenizer_manager.rid_to_state[state.rid]
            yield output

    def flush_cache(self) -> Answer:
        with self.scheduler.lock:
            return Answer(self.scheduler.idle)

    def begin_weight_update(self, selector: str = "all") -> tuple[bool, str]:
        if self.session:
            return False, "a weight-update session is already open; call end_weight_update() first"
        self.session = True
        return True, "Success"

    def end_weight_update(self) -> tuple[bool, str]:
        if not self.session:
            return False, "no weight-update session is open; call begin_weight_update() first"
        self.session = False
        return True, "Success"

    def update_weights_from_tensor(
        self, named_tensors: list[Any], load_format: str | None = None, flush_cache: bool = True
    ) -> tuple[bool, str]:
        if SESSIONS and not self.session:
            return False, "update_weights_from_tensor must run between begin_weight_update() and end"
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(named_tensors)
        buffer.seek(0)
        with self.scheduler.lock:
            if not self.scheduler.idle:
                raise AssertionError("Cache flush failed after updating weights")
            if load_format not in self.arguments["custom_weight_loader"]:
                raise NotImplementedError(f"Unknown load_format={load_format}")
            module, _, name = str(load_format).rpartition(".")
            getattr(importlib.import_module(module), name)(self.scheduler.model, pickle.load(buffer))
        return True, "Success"

    def load_lora_adapter(self, lora_name: str, lora_path: str, pinned: bool = False) -> Answer:
        from safetensors import safe_open

        folder = Path(lora_path)
        settings = json.loads((folder / "adapter_config.json").read_text())
        with safe_open(folder / "adapter_model.safetensors", "pt") as tensors:
            self.adapters[lora_name] = (settings, sorted(tensors.keys()))
        return Answer(True)

    def unload_lora_adapter(self, lora_name: str) -> Answer:
        del self.adapters[lora_name]
        return Answer(True)

    def release_memory_occupation(self, tags: list[str] | None = None) -> None:
        if not self.scheduler.idle:
            raise AssertionError("release_memory_occupation should be called only when server is idle.")
        self.calls.append("release")

    def resume_memory_occupation(self, tags: list[str] | None = None) -> None:
        self.calls.append("resume")

    def get_server_info(self) -> dict[str, Any]:
        graph: Any = {"decode": 0.5, "prefill": 0.25} if SESSIONS else 0.75
        return {"internal_states": [{"memory_usage": {"weight": 1.0, "kvcache": 2.0, "graph": graph}}]}

    def shutdown(self) -> None:
        self.calls.append("shutdown")


if not SESSIONS:
    del Engine.begin_weight_update, Engine.end_weight_update
