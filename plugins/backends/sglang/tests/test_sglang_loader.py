"""What runs in SGLang's processes, on layers that are fused and wrapped as there."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from rlinf_backend_sglang.loader import REPORT, receive
from rlinf_backend_sglang.release import ADAPTERS
from rlinf_backend_sglang.updates import Updates
from torch import Tensor, nn

from rlinf_core.isolated_rollout.buckets import Bucket, digest
from rlinf_core.isolated_rollout.engine import Installed, Setup

SENT = {
    "model.layers.0.self_attn.q_proj.weight": torch.full((4, 4), 1.5),
    "model.layers.0.self_attn.k_proj.weight": torch.full((2, 4), 2.5),
    "model.layers.0.self_attn.v_proj.weight": torch.full((2, 4), 3.5),
    "model.layers.0.self_attn.o_proj.weight": torch.full((4, 4), 4.5),
    "model.layers.0.self_attn.q_proj.lora_A.weight": torch.full((1, 4), 9.0),
}
ROWS = {"q_proj": slice(0, 4), "k_proj": slice(4, 6), "v_proj": slice(6, 8)}


class Linear(nn.Module):
    """A layer, which has an adapter or not."""

    def __init__(self, rows: int, *, wrapped: bool = False) -> None:
        super().__init__()
        if wrapped:
            self.base_layer = Linear(rows)
        else:
            self.weight = nn.Parameter(torch.zeros(rows, 4), requires_grad=False)


class Attention(nn.Module):
    """A model of one layer, which loads weights as SGLang's models do: by parts of names."""

    def __init__(self, *, wrapped: bool) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.layers = nn.ModuleList([nn.Module()])
        self.model.layers[0].self_attn = nn.Module()
        self.model.layers[0].self_attn.qkv_proj = Linear(8, wrapped=wrapped)
        self.model.layers[0].self_attn.o_proj = Linear(4, wrapped=wrapped)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        known = dict(self.named_parameters())
        for name, tensor in weights:
            part = next((part for part in ROWS if part in name), "")
            whole = name.replace(part, "qkv_proj") if part else name
            if whole in known:
                known[whole].data[ROWS.get(part, slice(None))] = tensor
            else:
                warnings.warn(f"Parameter {whole} not found in params_dict", stacklevel=2)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.filterwarnings("error")
def test_fused_layers_get_their_parts_and_digests_name_them(
    wrapped: bool, shared: Callable[[dict[str, Tensor]], Bucket], tmp_path: Path
) -> None:
    model = Attention(wrapped=wrapped)
    receive(model, [(json.dumps({"bucket": shared(SENT).to_plain()}), torch.empty(0))])
    fused = next(iter(model.parameters()))
    assert fused[:, 0].tolist() == [1.5, 1.5, 1.5, 1.5, 2.5, 2.5, 3.5, 3.5]
    receive(model, [(json.dumps({"report": str(tmp_path)}), torch.empty(0))])
    (file,) = tmp_path.glob(REPORT)
    by_names = {tuple(names): found for names, found in json.loads(file.read_text())}
    attention = "model.layers.0.self_attn"
    parts = tuple(f"{attention}.{part}.weight" for part in ROWS)
    assert by_names == {
        parts: digest([SENT[name] for name in parts]),
        (f"{attention}.o_proj.weight",): digest([SENT[f"{attention}.o_proj.weight"]]),
    }


def test_digests_of_several_processes_are_added_and_counted(tmp_path: Path) -> None:
    updates = Updates(None, None, Setup(str(tmp_path), (2,), 0, 64), 2)  # type: ignore[arg-type]
    for number, shared in ((1, 2**64 - 1), (2, 3)):
        found = [[["a.weight"], 7], [["b.weight"], shared]]
        (tmp_path / f"digests-{number}.json").write_text(json.dumps(found))
    assert updates._collect(tmp_path) == [
        Installed(("a.weight",), 14, 2),
        Installed(("b.weight",), 2, 2),  # below 2^64
    ]


def test_every_release_has_its_module() -> None:
    for module in ADAPTERS.values():
        assert (Path(__file__).parents[1] / f"{module.replace('.', '/')}.py").exists()
