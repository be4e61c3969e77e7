"""What runs in vLLM's workers: a loader that waits for weights, and methods that install and digest them.

vLLM imports this module in every worker, by the name it is given, before a model is built; that is how its
loader registry learns of the loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import get_pp_group
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

from rlinf_backend_vllm.arguments import LOAD_FORMAT
from rlinf_core.isolated_rollout.buckets import Bucket, digest
from rlinf_core.isolated_rollout.layers import installed
from rlinf_core.isolated_rollout.names import is_adapter


@register_model_loader(LOAD_FORMAT)
class WaitingLoader(DummyModelLoader):
    """Random weights until the first update. On processors vLLM packs the weights of linear layers and drops
    the parameters; here they are kept beside, so that updates have somewhere to go."""

    def load_model(self, *args: Any, **kwargs: Any) -> nn.Module:  # Any: as the releases have it
        """As vLLM does, and then with the parameters back in their layers."""
        self.kept: list[tuple[nn.Module, nn.Parameter]] = []
        model: nn.Module = super().load_model(*args, **kwargs)
        for layer, weight in self.kept:
            layer.weight = weight
        return model

    def load_weights(self, model: nn.Module, model_config: Any) -> None:  # Any: vLLM's own
        """Called once the model is built, before anything is packed."""
        super().load_weights(model, model_config)
        self.kept = [(layer, _weight(layer)) for layer in model.modules() if _has_weight(layer)]


class WeightReceiver:
    """Mixed into vLLM's worker class."""

    model_runner: Any  # vLLM's own

    def rlinf_prepare(self) -> None:
        """Room for what the stage before sends, which vLLM makes with its first compilation or captured graph
        and lacks on processors without one."""
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.get_model().make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )

    def rlinf_load(self, plain: list[Any]) -> None:  # Any: a bucket as plain values
        """Copy a bucket into the model, by the model's own loading."""
        model = self.model_runner.get_model()
        sent = {name: t for name, t in Bucket.from_plain(plain).tensors().items() if not is_adapter(name)}
        if sent:
            with _bare(model):
                model.load_weights(sent.items())

    def rlinf_finish(self) -> list[tuple[list[str], int]]:
        """Pack again what was packed, and tell what lies in the model now."""
        model = self.model_runner.get_model()
        for layer in model.modules():
            if hasattr(layer, "cpu_linear") and _has_weight(layer):
                weight = layer.weight
                layer.quant_method.process_weights_after_loading(layer)
                layer.weight = weight
        return [(names, digest([tensor])) for names, tensor in installed(model, _parts(model))]

    def rlinf_memory(self) -> int:
        """Bytes of weights and cache."""
        model = self.model_runner.get_model()
        tensors = [*model.parameters(), *_tensors(self.model_runner.kv_caches)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _weight(layer: nn.Module) -> nn.Parameter:
    weight = layer.weight
    if not isinstance(weight, nn.Parameter):
        raise TypeError(f"{type(layer).__name__} has no parameter as its weight")
    return weight


def _has_weight(layer: nn.Module) -> bool:
    return isinstance(layer._parameters.get("weight"), nn.Parameter) and hasattr(layer, "quant_method")


@contextmanager
def _bare(model: nn.Module) -> Iterator[None]:
    """Without the layers that adapters wrap around others, whose names vLLM's own loading does not know."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(getattr(child, "base_layer", None), nn.Module)
    ]
    for parent, name, child in found:
        setattr(parent, name, child.base_layer)
    try:
        yield
    finally:
        for parent, name, child in found:
            setattr(parent, name, child)


def _parts(model: nn.Module) -> dict[str, list[str]]:
    """Layer of vLLM -> the layers that it is made of: `qkv_proj` of `q_proj`, `k_proj` and `v_proj`."""
    found: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    return found


def _tensors(held: Any) -> Iterator[Tensor]:  # Any: tensors in lists, as the releases have it
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, list | tuple):
        for each in held:
            yield from _tensors(each)
