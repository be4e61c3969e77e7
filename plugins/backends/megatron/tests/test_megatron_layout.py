"""What is checked before any process group is opened, and how tensors are put together and taken apart."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest
import torch
from rlinf_backend_megatron import release
from rlinf_backend_megatron.architecture import Architecture, Experts, read
from rlinf_backend_megatron.backend import MegatronBackend
from rlinf_backend_megatron.check_model import CheckModel
from rlinf_backend_megatron.config import MegatronConfig
from rlinf_backend_megatron.context import causal_mask, places_in, positions_of
from rlinf_backend_megatron.layout import Layout, checked_layout
from rlinf_backend_megatron.mapping import Piece, check_names, join, merge, part, pieces, shard
from rlinf_backend_megatron.packing import attend, packed_line
from rlinf_backend_megatron.source import read_source
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from rlinf_core.api import LoRAConfig, OptimizerConfig, TrainerContext
from rlinf_core.errors import ConfigError, ModelError, PluginError
from rlinf_core.testing.fakes import TinyTextModel

SMALL = Architecture(
    model_type="qwen2",
    layers=4,
    hidden=8,
    heads=4,
    groups=2,
    head_dim=2,
    feed_forward=12,
    vocabulary=7,
    positions=32,
    eps=1e-6,
    rope_base=1e4,
    rope_factor=None,
    tied=False,
    qkv_bias=True,
    qk_norm=False,
    experts=None,
)
MIXED = replace(SMALL, model_type="qwen3_moe", experts=Experts(6, 2, 4, normalised=True))


def checked(ranks: int, model: Architecture = SMALL, engine: bool = False, **settings: Any) -> Layout:
    return checked_layout(MegatronConfig(**settings), model, ranks, transformer_engine=engine)


def test_data_parallel_is_what_is_left() -> None:
    assert checked(8, tensor_parallel=2, pipeline_parallel=2) == Layout(2, 2, 1, 1, 2)
    assert checked(12, MIXED, expert_parallel=3) == Layout(1, 1, 1, 3, 12)
    assert checked(16, engine=True, tensor_parallel=2, context_parallel=4).data == 2


@pytest.mark.parametrize(
    ("ranks", "model", "settings", "message"),
    [
        (
            3,
            SMALL,
            {"tensor_parallel": 2},
            r"tensor_parallel=2 x .* = 2 ranks, which do not divide the actor's 3",
        ),
        (
            3,
            SMALL,
            {"pipeline_parallel": 3},
            r"pipeline_parallel .*: 3 does not divide the model's 4 layers; .* 1, 2, 4",
        ),
        (
            3,
            SMALL,
            {"tensor_parallel": 3},
            r"tensor_parallel .*: 3 does not divide the model's 4 attention heads",
        ),
        (4, SMALL, {"tensor_parallel": 4}, r"4 does not divide the model's 2 key and value heads; .*: 1, 2"),
        (
            2,
            replace(SMALL, feed_forward=13),
            {"tensor_parallel": 2},
            r"2 does not divide the model's 13 feed-forward units",
        ),
        (2, SMALL, {"expert_parallel": 2}, r"expert_parallel .*: 2, but qwen2 has no experts"),
        (4, MIXED, {"expert_parallel": 4}, r"4 does not divide the model's 6 experts"),
        (2, MIXED, {"expert_parallel": 3}, r"3 does not divide the 2 of these"),
        (
            2,
            MIXED,
            {"tensor_parallel": 2},
            r"experts with tensor parallelism only where sequence_parallel is on",
        ),
        (
            2,
            SMALL,
            {"tensor_parallel": 2, "sequence_parallel": True},
            r"sequence_parallel .* needs TransformerEngine",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_named(
    ranks: int, model: Architecture, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(ranks, model, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pipeline_parallel": 0}, r"backend.pipeline_parallel \(megatron\): 0 is less than 1"),
        ({"precision": "fp8"}, r"backend.precision \(megatron\): 'fp8' is not one of fp32, bf16"),
        ({"recompute": "some"}, r"backend.recompute .* none, selective, full"),
        ({"sequence_parallel": True}, r"of which there is one; raise backend.tensor_parallel"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MegatronConfig(**settings)


def test_a_release_that_is_absent_or_out_of_range_is_named_with_the_line_that_installs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version, fits in (
        ("0.15.3", False),
        ("0.16.1", True),
        ("0.19.2", True),
        ("0.20.0rc1", False),
        ("1.0", False),
    ):
        monkeypatch.setattr(metadata, "version", lambda _name, found=version: found)
        if fits:
            assert release.check_release() == version
            continue
        with pytest.raises(PluginError, match=rf"0\.16 to 0\.19; {version} is installed; pip install"):
            release.check_release()

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(
        PluginError, match=r"megatron-core, which is not installed; pip install 'megatron-core>="
    ):
        release.check_release()


def test_the_cpu_and_a_preload_that_is_not_there_are_refused_before_anything_is_built() -> None:
    asked = (OptimizerConfig(), LoRAConfig(), TrainerContext())
    with pytest.raises(ConfigError, match="trains on CUDA devices, and this is 'cpu'; use --backend fsdp"):
        MegatronBackend(MegatronConfig()).build(TinyTextModel(None), *asked)
    with pytest.raises(ConfigError, match=r"nowhere\.py is no file"):
        MegatronBackend(MegatronConfig(preload="nowhere.py")).build(TinyTextModel(None), *asked)


class TwoLayers(TinyTextModel):
    """A Qwen2 of two layers, with what stands for a value head."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__(None)
        self.head = head

    def module(self, seed: int = 0) -> Any:  # Any: transformers modules are not typed
        module = CheckModel(None).module(seed)
        module.value_head = self.head
        return module

    def value_head(self, module: Any) -> nn.Module | None:
        found: nn.Module | None = self.head
        return found


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (LoRAConfig(rank=4, dropout=0.1), r"lora\.dropout: .* has no dropout on adapters; set it to 0"),
        (
            LoRAConfig(rank=4, target_modules=("layers.1.self_attn.q_proj",)),
            r"lora\.target_modules: .* of all layers; asked for were those of some layers alone",
        ),
        (LoRAConfig(rank=4, target_modules=("q_porj",)), r"no linear module is named q_porj"),
    ],
)
def test_adapters_that_have_no_place_are_named(lora: LoRAConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_source(TwoLayers(), lora, 0)


def test_a_value_head_of_another_kind_is_named() -> None:
    with pytest.raises(ConfigError, match=r"values come from a linear layer with one output, .* Tanh"):
        read_source(TwoLayers(nn.Tanh()), LoRAConfig(), 0)


def test_names_are_those_without_adapters_and_receivers_get_those_of_peft() -> None:
    """Of 12 tensors a layer, the embedding, the norm and the head; adapters have two a layer and name."""
    lora = LoRAConfig(rank=4, target_modules=("q_proj", "down_proj"))
    source = read_source(TwoLayers(nn.Linear(16, 1)), lora, 0)
    assert source.adapted == ("self_attn.q_proj", "mlp.down_proj")
    assert source.own_names() == {name for piece in pieces(read(source.config)) for name in piece.hf}
    assert len(source.own_names()) == 2 * 12 + 3
    extra = source.extra_pieces(2)
    assert {name for piece in extra for name in piece.hf} == set(source.state) - source.own_names()
    query = "layers.1.self_attn.q_proj"
    assert source.sent[f"model.{query}.weight"] == f"base_model.model.model.{query}.base_layer.weight"
    splits = {piece.hf[0].split("layers.1.")[1]: piece.split for piece in extra if piece.layer == 1}
    assert splits == {
        "self_attn.q_proj.lora_A.default.weight": "none",
        "self_attn.q_proj.lora_B.default.weight": "rows",
        "mlp.down_proj.lora_A.default.weight": "columns",
        "mlp.down_proj.lora_B.default.weight": "none",
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, r"architecture None is not mapped to Megatron; mapped are llama, qwen2, qwen3, qwen3_moe"),
        (LlamaConfig(attention_bias=True), r"this llama has attention_bias=True"),
        (LlamaConfig(hidden_act="gelu"), r"hidden_act='gelu'"),
        (Qwen2Config(use_sliding_window=True, max_window_layers=1), r"layer_types="),
        (Qwen3MoeConfig(decoder_sparse_step=2), r"decoder_sparse_step=2"),
        (
            LlamaConfig(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
            r"rotary embeddings of type 'yarn'",
        ),
    ],
)
def test_what_is_not_mapped_is_named(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(config)


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig])
def test_every_parameter_of_a_mapped_family_is_in_the_table(kind: Any) -> None:
    extra = {"num_experts": 4, "moe_intermediate_size": 8} if kind is Qwen3MoeConfig else {}
    config = kind(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **extra,
    )
    module = AutoModelForCausalLM.from_config(config)
    names = {name for name, _ in module.named_parameters()}
    check_names(read(config), names)
    with pytest.raises(ModelError, match=r"not mapped \(extra.weight\)"):
        check_names(read(config), {*names, "extra.weight"})


def test_ranks_that_share_positions_have_an_early_and_a_late_chunk() -> None:
    assert positions_of(8, 0, 2).tolist() == [0, 1, 6, 7]
    assert positions_of(8, 1, 2).tolist() == [2, 3, 4, 5]
    assert places_in(positions_of(8, 1, 2), 8).tolist() == [-1, -1, 0, 1, 2, 3, -1, -1]
    assert causal_mask(4, 1, 2).int().tolist() == [[1, 0, 1, 0], [1, 0, 1, 1]]  # keys 0, 3, 1, 2


def test_rows_stand_in_one_line_longest_first_and_padding_last() -> None:
    """Three rows of four places with 2, 4 and 1 tokens, in a line that ranks cut in fours."""
    line = packed_line([2, 4, 1], 4, 4, torch.device("cpu"))
    assert line.source_P.tolist() == [4, 5, 6, 7, 0, 1, 8, 0]
    assert line.begin_B.tolist() == [4, 0, 6]
    assert line.rows.cu_seqlens_q.tolist() == [0, 4, 6, 7, 8]
    assert line.rows.max_seqlen_q == 4


@pytest.mark.parametrize("counts", [[3], [300, 299, 40, 40, 2, 1], [5, 5, 5]])
def test_attention_in_a_line_is_that_of_each_row(counts: list[int]) -> None:
    """Four heads, two of keys; 300 and 40 tokens are too far apart for one call."""
    rows = packed_line(counts, max(counts), 1, torch.device("cpu")).rows
    assert len(rows.groups) == (2 if counts[0] == 300 else 1)
    query, key, value = (torch.randn(sum(counts), heads, 8) for heads in (4, 2, 2))
    expected = [
        functional.scaled_dot_product_attention(
            *(part.transpose(0, 1)[None] for part in parts), is_causal=True, enable_gqa=True
        )[0].transpose(0, 1)
        for parts in zip(*(whole.split(counts) for whole in (query, key, value)), strict=True)
    ]
    torch.testing.assert_close(attend(query, key, value, rows, None), torch.cat(expected).flatten(1))


def test_queries_keys_and_values_lie_group_by_group() -> None:
    """Of four heads in two groups, with one number a row: heads 0 and 1 with the first key and value."""
    piece = next(found for found in pieces(SMALL) if found.qkv)
    q, k, v = (torch.arange(float(n))[:, None] + start for n, start in ((8, 0), (4, 100), (4, 200)))
    whole = join(piece, [q, k, v], SMALL, 8)
    assert whole.flatten().tolist() == [0, 1, 2, 3, 100, 101, 200, 201, 4, 5, 6, 7, 102, 103, 202, 203]
    assert shard(piece, whole, 1, 2).flatten().tolist() == [4, 5, 6, 7, 102, 103, 202, 203]


def test_gate_and_up_are_both_on_every_rank() -> None:
    piece = Piece(("gate", "up"), ("fc1",), "halves")
    whole = join(piece, [torch.arange(4.0)[:, None], 10 + torch.arange(4.0)[:, None]], SMALL, 8)
    assert shard(piece, whole, 0, 2).flatten().tolist() == [0, 1, 10, 11]
    assert shard(piece, whole, 1, 2).flatten().tolist() == [2, 3, 12, 13]


@pytest.mark.parametrize("size", [1, 2])
def test_shards_make_the_tensors_that_they_came_from(size: int) -> None:
    padded = SMALL.padded_vocabulary(size)
    assert padded == {1: 7, 2: 8}[size]
    random = torch.Generator().manual_seed(0)
    rows = {"q": 8, "k": 4, "v": 4}
    for piece in pieces(SMALL):
        given = [
            torch.randn(7 if piece.vocabulary else rows.get(name.split(".")[-2][0], 12), 12, generator=random)
            for name in piece.hf
        ]
        whole = join(piece, given, SMALL, padded)
        back = part(piece, merge(piece, [shard(piece, whole, rank, size) for rank in range(size)]), SMALL)
        assert all(torch.equal(one, other) for one, other in zip(given, back, strict=True)), piece
