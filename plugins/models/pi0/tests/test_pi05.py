"""pi0.5: norms that are told the time, the state in the prompt, and its chain against a plain computation.

Axes: M decisions, C actions of a chunk, T tokens, E hidden size, H heads, D head dimension.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rlinf_core.errors import ModelError

sys.path.insert(0, str(Path(__file__).parent))
import pi0_ranks as support
from rlinf_model_pi0.layout import published
from rlinf_model_pi0.prompts import Prompts, byte_tokenizer

SEEDS = [1, 2, 3, 4]


def five(**options: Any) -> Any:
    """A tiny pi0.5. Any: settings."""
    return support.flow(**{"preset": "tiny_pi05", "train": "all", **options})


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def turned(x_MHTD: Tensor, at_MT: Tensor) -> Tensor:
    """Rotated by position, halves against halves, slowest period 2 pi 10000."""
    half = x_MHTD.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half) / half)
    angle = (at_MT[:, None, :, None] * rates).repeat(1, 1, 1, 2)
    rotated = torch.cat([-x_MHTD[..., half:], x_MHTD[..., :half]], -1)
    return x_MHTD * angle.cos() + rotated * angle.sin()


@torch.no_grad()
def velocity_by_hand(
    base: Any, prefix_MTE: Tensor, valid_MT: Tensor, noisy: Tensor, time_M: Tensor
) -> Tensor:
    """Both streams in one pass, from weights by their published names: pictures, prompt and actions attend
    jointly; nothing before the actions sees them."""
    w = {published(name): value for name, value in base.state_dict().items()}
    joint = "paligemma_with_expert."

    def layer(name: str, x: Tensor) -> Tensor:
        bias = w.get(f"{name}.bias")
        return functional.linear(x, w[f"{name}.weight"], bias)

    size = w["action_in_proj.weight"].shape[0]
    period = 4e-3 * (4.0 / 4e-3) ** torch.linspace(0.0, 1.0, size // 2)
    wave = 2 * math.pi * time_M[:, None] / period
    silu = functional.silu
    told = torch.cat([wave.sin(), wave.cos()], 1)
    told = silu(layer("time_mlp_out", silu(layer("time_mlp_in", told))))[:, None]

    def adapted(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift, gate = layer(f"{name}.dense", told).chunk(3, -1)
        return rms(x) * (1 + scale) + shift, gate

    vlm, act = prefix_MTE, layer("action_in_proj", noisy)
    before, count = vlm.shape[1], act.shape[1]
    sees = torch.ones(before + count, before + count, dtype=torch.bool)
    sees[:before, before:] = False
    mask = sees & torch.cat([valid_MT, torch.ones(len(act), count, dtype=torch.bool)], 1)[:, None]
    at_MT = torch.cat([valid_MT, torch.ones(len(act), count)], 1).cumsum(1) - 1
    gelu = {"approximate": "tanh"}
    for i in range(2):
        names = f"{joint}paligemma.model.language_model.layers.{i}.", f"{joint}gemma_expert.model.layers.{i}."
        normed_v = rms(vlm) * (1 + w[f"{names[0]}input_layernorm.weight"])
        normed_a, gate = adapted(f"{names[1]}input_layernorm", act)
        parts = [
            torch.cat(
                [
                    layer(f"{n}self_attn.{p}_proj", x)
                    for n, x in zip(names, (normed_v, normed_a), strict=True)
                ],
                1,
            )
            for p in "qkv"
        ]
        q, k, v = (p.unflatten(2, (-1, 32)).transpose(1, 2) for p in parts)
        scores = turned(q, at_MT) @ turned(k, at_MT).transpose(2, 3) / 32**0.5  # one head of keys for all
        mixed = scores.masked_fill(~mask[:, None], -1e30).softmax(-1) @ v
        mixed = mixed.transpose(1, 2).flatten(2)
        vlm = vlm + layer(f"{names[0]}self_attn.o_proj", mixed[:, :before])
        act = act + gate * layer(f"{names[1]}self_attn.o_proj", mixed[:, before:])
        normed_v = rms(vlm) * (1 + w[f"{names[0]}post_attention_layernorm.weight"])
        normed_a, gate = adapted(f"{names[1]}post_attention_layernorm", act)
        taken = [
            layer(
                f"{n}mlp.down_proj",
                functional.gelu(layer(f"{n}mlp.gate_proj", x), **gelu) * layer(f"{n}mlp.up_proj", x),
            )
            for n, x in zip(names, (normed_v, normed_a), strict=True)
        ]
        vlm, act = vlm + taken[0], act + gate * taken[1]
    return layer("action_out_proj", adapted(f"{joint}gemma_expert.model.norm", act)[0])


def test_greedy_actions_are_those_of_one_joint_pass_a_step_by_hand() -> None:
    model = five(chunk=8)
    module = support.wake(model.module(3))
    seen = support.shown()
    inputs = model._bound.collate_shown(seen)
    tokens = inputs["tokens"]
    pictures = model._bound.pictures(inputs)
    shown = torch.ones(pictures.shape[:2], dtype=torch.bool)
    with torch.no_grad():
        prefix = module.model.embed_prefix(tokens.clamp(min=0), pictures, shown)
    state = torch.zeros(4, 8, 32)
    for step in range(4):
        time = torch.full((4,), 1.0 - step / 4)
        state = state - velocity_by_hand(module, prefix, tokens >= 0, state, time) / 4
    sample = model.act(module, seen, SEEDS, greedy=True)
    assert state.std() > 0.05
    torch.testing.assert_close(sample.actions, 0.5 + state[..., :3], atol=1e-4, rtol=1e-4)


def test_the_prompt_holds_task_and_state_in_whole_numbers() -> None:
    tokenizer = byte_tokenizer()
    prompts = Prompts(tokenizer, image_id=260, room=80)
    # 256 numbers for -1..1: -1 has reached the first edge (0), 0 the 129th, 1 all of them; -7 none
    states = torch.tensor([[-1.0, 0.0, 0.999], [-7.0, 1.0, 1.0 / 128]]).numpy()
    ids = prompts.encode([" pick_up the\ncube ", "go"], 2, states)
    said = [tokenizer.decode([int(i) for i in row if i >= 0][2:]) for row in ids]
    assert said == [
        "<bos>Task: pick up the cube, State: 0 128 255;\nAction: ",
        "<bos>Task: go, State: -1 255 129;\nAction: ",
    ]
    assert ids.shape == (2, 82)
    with pytest.raises(
        ModelError, match=r"model.prompt_tokens .pi0.: the prompt .* takes 42 tokens, .* for 20"
    ):
        Prompts(tokenizer, 260, 20).encode(["pick up"], 0, states[:1])


def test_the_state_is_seen_and_values_are_of_the_observation_alone() -> None:
    model = five(valued=True)
    module = support.wake(model.module(3))
    seen = support.shown()
    plain = model.act(module, seen, SEEDS)
    for name in seen:
        other = model.act(module, {**seen, name: seen[name].flip(0)}, SEEDS)
        assert (other.actions - plain.actions).abs().max() > 1e-3, name
    rows = [
        support.episode(each, seen, slice(0, 4)) for each in (plain, model.act(module, seen, [9, 8, 7, 6]))
    ]
    values = [
        model.policy_outputs(module, model.collate([row]), frozenset(want)).values_BT
        for row in rows
        for want in ({"values"}, {"values", "logprobs"})
    ]
    assert values[0].std() > 1e-3
    for value in values[1:]:
        torch.testing.assert_close(value, values[0], atol=1e-5, rtol=1e-5)


def test_the_state_may_be_left_out_of_the_prompt() -> None:
    seen = support.shown()
    other = {**seen, "state": seen["state"].flip(0)}
    model = five(state_in_prompt=False)
    module = support.wake(model.module(3))
    blind = [model.act(module, each, SEEDS).actions for each in (seen, other)]
    assert torch.equal(*blind)
    tokens = model._bound.collate_shown(seen)["tokens"]
    assert model._bound.prompts._tokenizer.decode(tokens[1][tokens[1] >= 0][32:].tolist()) == "<bos>lift\n"


@pytest.mark.parametrize("noise", ["sde", "learned"])
def test_training_judges_what_was_drawn(noise: Any) -> None:
    model = five(noise=noise, level="token")
    module = support.wake(model.module(3))
    seen = support.shown()
    sample = model.act(module, seen, SEEDS)
    row = support.episode(sample, seen, slice(0, 4), each=12)
    row.executed = None
    judged = model.policy_outputs(module, model.collate([row]), frozenset({"logprobs"})).logprobs_BT
    torch.testing.assert_close(judged[0], sample.logprobs_NK.flatten(), atol=2e-4, rtol=1e-5)


def test_the_full_size_has_the_names_and_shapes_of_pi05() -> None:
    from rlinf_model_pi0.five import Pi05Network
    from transformers import PI0Config

    with torch.device("meta"):
        network = Pi05Network(PI0Config())
    shapes = {published(name): tuple(value.shape) for name, value in network.state_dict().items()}
    expert, vlm = "paligemma_with_expert.gemma_expert.", "paligemma_with_expert.paligemma."
    expected = {
        "action_in_proj.weight": (1024, 32),
        "action_out_proj.weight": (32, 1024),
        "time_mlp_in.weight": (1024, 1024),
        "time_mlp_out.bias": (1024,),
        f"{expert}model.layers.17.input_layernorm.dense.weight": (3072, 1024),
        f"{expert}model.layers.0.post_attention_layernorm.dense.bias": (3072,),
        f"{expert}model.norm.dense.weight": (3072, 1024),
        f"{expert}model.layers.0.self_attn.q_proj.weight": (2048, 1024),
        f"{expert}model.layers.0.self_attn.k_proj.weight": (256, 1024),
        f"{expert}model.layers.0.mlp.up_proj.weight": (4096, 1024),
        f"{expert}lm_head.weight": (257152, 1024),
        f"{vlm}lm_head.weight": (257152, 2048),
        f"{vlm}model.language_model.layers.17.mlp.gate_proj.weight": (16384, 2048),
        f"{vlm}model.vision_tower.vision_model.encoder.layers.26.mlp.fc1.weight": (4304, 1152),
        f"{vlm}model.multi_modal_projector.linear.weight": (2048, 1152),
    }
    assert {name: shapes.get(name) for name in expected} == expected
    assert not any("state_proj" in name or "action_time_mlp" in name for name in shapes)
    assert len(shapes) == 812  # as many as LeRobot counts
