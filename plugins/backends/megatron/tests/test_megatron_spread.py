"""Which rank holds which entries of which tensor, worked out by hand and for layouts of every kind."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from rlinf_backend_megatron.architecture import Architecture, Experts
from rlinf_backend_megatron.config import MegatronConfig
from rlinf_backend_megatron.layout import Layout, checked_layout
from rlinf_backend_megatron.mapping import Form, pieces
from rlinf_backend_megatron.spread import Part, Place, Spread, flat_boxes, layer_order, shares

from rlinf_core.errors import ConfigError

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
    tied=True,
    qkv_bias=True,
    qk_norm=False,
    experts=None,
)
MIXED = replace(SMALL, model_type="qwen3_moe", qkv_bias=False, experts=Experts(4, 2, 4, normalised=True))
ROWS = {"q_proj": 8, "k_proj": 4, "v_proj": 4, "gate_proj": 12, "up_proj": 12}


def form(name: str, model: Architecture) -> Form:
    """What a tensor of these models is like."""
    kind = name.split(".")[-2]
    if "experts." in name:
        return Form((4, 8, 8) if "gate_up" in name else (4, 8, 4), torch.float32)
    if "norm" in kind:
        return Form((8,), torch.float32)
    if name.endswith("bias"):
        return Form((ROWS[kind],), torch.float32)
    shape = {
        "o_proj": (8, 8),
        "down_proj": (8, 12),
        "embed_tokens": (7, 8),
        "lm_head": (7, 8),
        "gate": (4, 8),
    }
    return Form(shape.get(kind) or (ROWS[kind], 8), torch.float32)


def spread(model: Architecture, *, distributed: bool) -> Spread:
    """With the parameters of a layer in the order of the table."""
    found = pieces(model)
    order = [piece.megatron[0] for piece in found if piece.layer == 0]
    forms = {name: form(name, model) for piece in found for name in piece.hf}
    return Spread(model, forms, (), tuple(order), adapted=False, distributed=distributed)


def part(name: str, entries: int, *, own_bucket: bool = False) -> Part:
    shape = (entries,)
    return Part(name, name, shape, (0,), shape, torch.float32, trained=True, own_bucket=own_bucket)


def test_a_range_of_a_matrix_is_the_rest_of_a_row_whole_rows_and_the_beginning_of_one() -> None:
    """Of three rows of four, entries 2 to 10."""
    assert list(flat_boxes((3, 4), 2, 11)) == [
        (2, (0, 2), (1, 2)),
        (4, (1, 0), (1, 4)),
        (8, (2, 0), (1, 3)),
    ]
    assert list(flat_boxes((3, 4), 5, 7)) == [(5, (1, 1), (1, 2))]
    assert list(flat_boxes((3, 4), 4, 12)) == [(4, (1, 0), (2, 4))]
    assert list(flat_boxes((), 0, 1)) == [(0, (), ())]
    assert list(flat_boxes((5,), 3, 3)) == []


@given(
    shape=some.lists(some.integers(1, 5), min_size=1, max_size=3),
    ends=some.tuples(*[some.integers(0, 125)] * 2),
)
def test_boxes_are_all_entries_of_a_range_and_no_others(shape: list[int], ends: tuple[int, int]) -> None:
    whole = torch.arange(math.prod(shape)).view(shape)
    begin, end = (min(each, whole.numel()) for each in sorted(ends))
    found: list[int] = []
    for start, offsets, sizes in flat_boxes(tuple(shape), begin, end):
        box = whole[tuple(slice(a, a + n) for a, n in zip(offsets, sizes, strict=True))]
        assert box.flatten().tolist() == list(range(start, start + math.prod(sizes)))
        found += box.flatten().tolist()
    assert found == list(range(begin, end))
    assert len(list(flat_boxes(tuple(shape), begin, end))) <= 2 * len(shape) - 1


def test_ranks_have_equal_shares_of_a_buffer_that_begins_with_the_last_parameter() -> None:
    """`b` lies at 0 to 99, `a` aligned at 128 to 137; 256 entries are two shares of 128."""
    parts = [part("a", 10), part("b", 100)]
    assert [shares(parts, owner, 2) for owner in (0, 1)] == [{"b": (0, 100)}, {"a": (0, 10)}]
    assert shares(parts, 0, 1) == {"a": (0, 10), "b": (0, 100)}


def test_the_embedding_of_two_stages_has_a_bucket_of_its_own() -> None:
    """`b` in one of 128 entries, `a` in another: of both each rank has 64."""
    parts = [part("a", 10, own_bucket=True), part("b", 100)]
    assert [shares(parts, owner, 2) for owner in (0, 1)] == [{"a": (0, 10), "b": (0, 64)}, {"b": (64, 100)}]


def test_gate_and_up_are_shared_alike_and_padding_of_the_vocabulary_belongs_to_nobody() -> None:
    """On two ranks; the second has rows 4 to 6 of seven tokens, and units 6 to 11 of gate and up."""
    parts = {
        each.local: each for each in spread(SMALL, distributed=False).parts(Place(1, Layout(2, 1, 1, 1, 1)))
    }
    tokens, units = parts["embedding.word_embeddings.weight"], parts["decoder.layers.2.mlp.linear_fc1.weight"]
    assert [(box.offsets, box.sizes) for box in tokens.boxes(0, tokens.entries)] == [((4, 0), (3, 8))]
    assert (units.shape, units.offsets, units.sizes) == ((2, 12, 8), (0, 6, 0), (2, 6, 8))
    columns = parts["decoder.layers.0.self_attention.linear_proj.weight"]
    assert (columns.shape, columns.offsets, columns.sizes) == ((8, 8), (0, 4), (8, 4))


def test_stages_name_the_layers_of_the_whole_model_and_both_ends_of_tied_ones_the_embedding() -> None:
    parts = spread(SMALL, distributed=False).parts(Place(1, Layout(1, 2, 1, 1, 1)))
    assert parts[0].local.startswith("decoder.layers.0.")
    assert parts[0].name.startswith("decoder.layers.2.")
    assert (parts[-1].local, parts[-1].name, parts[-1].again) == (
        "output_layer.weight",
        "embedding.word_embeddings.weight",
        True,
    )


def test_names_of_experts_stand_once_in_the_order_of_a_layer() -> None:
    inside = "mlp.experts.local_experts."
    names = [f"decoder.layers.0.{inside}{x}.linear_fc{n}.weight" for x in (0, 1) for n in (1, 2)]
    order = layer_order(["embedding.weight", "decoder.layers.0.norm.weight", *names, "decoder.layers.1.a"])
    assert order == ("norm.weight", f"{inside}{{x}}.linear_fc1.weight", f"{inside}{{x}}.linear_fc2.weight")


@settings(deadline=None, max_examples=60)
@given(
    sizes=some.tuples(*[some.sampled_from((1, 2))] * 4),
    data=some.integers(1, 3),
    distributed=some.booleans(),
    mixed=some.booleans(),
)
def test_the_ranks_of_any_layout_hold_everything_as_often_as_there_are_replicas(
    sizes: tuple[int, int, int, int], data: int, distributed: bool, mixed: bool
) -> None:
    tensor, pipeline, context, expert = sizes
    model = MIXED if mixed else SMALL
    if mixed:
        tensor, data = 1, data * expert  # experts are not shared by tensor-parallel ranks
    layout = Layout(tensor, pipeline, context, expert if mixed else 1, data)
    held: Counter[str] = Counter()
    state: Counter[str] = Counter()
    whole: dict[str, int] = {}
    over = spread(model, distributed=distributed)
    for rank in range(tensor * pipeline * context * data):
        place = Place(rank, layout)
        parts = over.parts(place)
        ranges = over.ranges(parts, place)
        for each in parts:
            whole[each.name] = math.prod(each.shape)
            held[each.name] += sum(math.prod(box.sizes) for box in each.boxes(0, each.entries))
            state[each.name] += sum(math.prod(b.sizes) for b in each.boxes(*ranges.get(each.local, (0, 0))))
    for name, entries in whole.items():
        times = held[name] // entries
        assert held[name] == times * entries, name
        split = "norm" not in name and "router" not in name
        once = 1 if split else tensor
        once *= 2 if model.tied and pipeline > 1 and "embedding" in name else 1
        assert state[name] == (once if distributed else times) * entries, name


def test_ranks_beyond_the_other_sizes_are_tensor_parallel_where_none_is_set() -> None:
    config = MegatronConfig(tensor_parallel=0, pipeline_parallel=2, sequence_parallel=True)
    assert (config.model_ranks, config.on(4).tensor_parallel, config.on(2).sequence_parallel) == (2, 2, False)
    assert checked_layout(config.on(4), SMALL, 4, transformer_engine=True) == Layout(2, 2, 1, 1, 1)
    with pytest.raises(ConfigError, match="4 does not divide the model's 2 key and value heads"):
        checked_layout(config.on(8), SMALL, 8, transformer_engine=True)
    with pytest.raises(ConfigError, match="= 2 ranks, which do not divide the actor's 3"):
        checked_layout(config.on(3), SMALL, 3, transformer_engine=True)
    with pytest.raises(ConfigError, match="-1 is less than 0"):
        MegatronConfig(tensor_parallel=-1)
