"""How CPU tensors travel inside pickles as raw buffers, without importing torch where it is not loaded."""

from __future__ import annotations

import copyreg
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Reduce = Callable[[Any], Any]  # Any: what `copyreg` takes and `__reduce_ex__` gives


def dispatch_table() -> dict[type, Reduce]:
    """Reducers for a pickler of this moment: those of `copyreg` and, where torch is loaded, ours."""
    table: dict[type, Reduce] = dict(copyreg.dispatch_table)
    torch: Any = sys.modules.get("torch")  # Any: a module
    if hasattr(torch, "nn"):  # otherwise another thread is in the middle of importing it
        table[torch.Tensor] = _reduce_tensor
        table[torch.nn.Parameter] = _reduce_tensor
    return table


def _reduce_tensor(tensor: Tensor) -> Any:  # Any: as `__reduce_ex__`
    import torch

    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    data = None
    if plain.numel():
        octets: Any = (
            plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
        )  # Any: numpy's stubs lack the buffer protocol
        data = pickle.PickleBuffer(octets)
    dtype = str(plain.dtype).removeprefix("torch.")
    is_parameter = type(tensor) is torch.nn.Parameter
    return _rebuild_tensor, (data, dtype, tuple(plain.shape), tensor.requires_grad, is_parameter)


def _rebuild_tensor(
    data: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, is_parameter: bool
) -> Tensor:
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    tensor = torch.empty(shape, dtype=kind)
    if data is not None:
        tensor = torch.frombuffer(data, dtype=kind).reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)
