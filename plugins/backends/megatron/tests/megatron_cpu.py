"""Makes Megatron-Core train on the CPU with gloo: `torch.cuda` stands for the CPU in this process.

For tests and for trying things only; `backend.preload` names this file. It changes torch for the whole
process, and has to run before Megatron is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed


class _Event:
    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing runs beside anything on the CPU."""

    def record(self, *_args: Any) -> None:
        """Already happened."""

    def synchronize(self) -> None:
        """Already happened."""

    def wait(self, *_args: Any) -> None:
        """Already happened."""


class _Stream(_Event):
    def wait_stream(self, *_args: Any) -> None:
        """There is one stream."""

    def wait_event(self, *_args: Any) -> None:
        """There is one stream."""

    def record_event(self, *_args: Any) -> _Event:
        """Already happened."""
        return _Event()


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return made


def _cuda_type(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    found = _TYPE(tensor, *args, **kwargs)
    return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found


_TYPE = torch.Tensor.type
_ALL_TO_ALL = torch.distributed.all_to_all_single
_FACTORIES = ("tensor", "zeros", "empty", "ones", "full", "arange", "empty_like", "zeros_like", "randn")
_TYPES = (
    "FloatTensor",
    "IntTensor",
    "LongTensor",
    "ByteTensor",
    "DoubleTensor",
    "HalfTensor",
    "BFloat16Tensor",
)


def _numbers(sizes: Any) -> Any:
    return sizes.tolist() if isinstance(sizes, torch.Tensor) else sizes


def _all_to_all(output: Any, given: Any, out_sizes: Any = None, in_sizes: Any = None, **kwargs: Any) -> Any:
    """Megatron leaves sizes in tensors where these are not on a CUDA device."""
    for name in ("output_split_sizes", "input_split_sizes"):
        if name in kwargs:
            kwargs[name] = _numbers(kwargs[name])
    if out_sizes is not None or in_sizes is not None:
        return _ALL_TO_ALL(output, given, _numbers(out_sizes), _numbers(in_sizes), **kwargs)
    return _ALL_TO_ALL(output, given, **kwargs)


def _patch() -> None:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda *_args, **_kwargs: None
    cuda.Event, cuda.Stream = _Event, _Stream
    cuda.current_stream = lambda *_args, **_kwargs: _Stream()
    cuda.get_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)
    cuda.manual_seed = torch.manual_seed
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    for name in _TYPES:
        setattr(cuda, name, getattr(torch, name))
    torch.distributed.all_to_all_single = _all_to_all
    torch.Tensor.cuda = lambda tensor, *_args, **_kwargs: tensor  # type: ignore[method-assign]
    torch.Tensor.type = _cuda_type  # type: ignore[method-assign]
    import megatron.core.tensor_parallel.random as random

    random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):  # left out where TransformerEngine is absent, and asked for
        moe_utils.te_general_gemm = None
    random._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)


if torch.cuda.current_device.__name__ != "<lambda>":  # once a process
    _patch()
