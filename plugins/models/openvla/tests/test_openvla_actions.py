"""Tokens, bins and scales of actions, by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_openvla.actions import ActionTokens, Scales, model_values, simulator_actions
from rlinf_model_openvla.config import OpenVLAConfig

from rlinf_core.api import Space
from rlinf_core.errors import ConfigError, ModelError

sys.path.insert(0, str(Path(__file__).parent))
import openvla_support as support

LLAMA = ActionTokens(32000, 256)
STATISTICS = {
    "bridge": {"action": {"q01": [-0.2, 0.0, 0.0], "q99": [0.2, 4.0, 1.0], "mask": [True, True, False]}},
    "fractal": {"action": {"q01": [-1.0], "q99": [1.0]}},
}


def test_ids_count_down_from_the_end_of_the_vocabulary_and_the_lowest_shares_the_last_bin() -> None:
    # 256 edges, 2/255 apart: -1 has reached one of them, 1 all of them, and 0 128 (the 128th is -1/255)
    assert LLAMA.ids(torch.tensor([-1.0, 0.0, 1.0, -7.0, 9.0])).tolist() == [
        31999,
        31872,
        31744,
        31999,
        31744,
    ]
    middle = 1.0 - 1.0 / 255
    values = LLAMA.values(torch.tensor([31999, 31872, 31745, 31744]))
    assert values.tolist() == pytest.approx([-middle, 0.0, middle, middle], abs=1e-15)
    assert LLAMA.first == 31744


def test_ids_are_those_of_numpys_digitize_and_values_come_back_within_half_a_bin() -> None:
    values = np.random.default_rng(0).uniform(-1.1, 1.1, 4000)
    edges = np.linspace(-1, 1, 256)
    expected = 32000 - np.digitize(np.clip(values, -1, 1), edges)
    assert LLAMA.ids(torch.from_numpy(values)).tolist() == expected.tolist()
    back = LLAMA.values(torch.from_numpy(expected)).numpy()
    assert np.abs(back - np.clip(values, -1, 1)).max() <= 1 / 255 + 1e-12


def test_every_token_but_the_lowest_has_a_value_of_its_own_that_leads_back_to_it() -> None:
    ids = torch.arange(31745, 32000)
    assert LLAMA.ids(LLAMA.values(ids)).tolist() == ids.tolist()


def test_values_are_scaled_between_the_quantiles_where_the_mask_holds() -> None:
    scales = Scales.from_statistics(STATISTICS, "bridge", "config.json", "openvla")
    # -0.2 + (0.5 + 1) / 2 * 0.4 = 0.1; 0 + (-0.5 + 1) / 2 * 4 = 1; masked: as it is
    assert scales.apply(torch.tensor([0.5, -0.5, -0.75])).tolist() == pytest.approx([0.1, 1.0, -0.75])
    assert Scales.of_space(Space(shape=(2,), low=-0.5, high=1.5), "openvla").apply(
        torch.tensor([-1.0, 0.25])
    ).tolist() == pytest.approx([-0.5, 0.75])


def test_statistics_that_are_missing_are_told_with_those_there_are() -> None:
    with pytest.raises(ModelError, match=r"no statistics of 'libero' in F; there are: bridge, fractal"):
        Scales.from_statistics(STATISTICS, "libero", "F", "openvla")
    with pytest.raises(ModelError, match=r"F has statistics of several data sets; name one: bridge, fractal"):
        Scales.from_statistics(STATISTICS, "", "F", "openvla")
    only = {"bridge": STATISTICS["bridge"]}
    assert Scales.from_statistics(only, "", "F", "openvla").key == "bridge"
    with pytest.raises(ModelError, match=r"statistics of 'x' in F have no q99"):
        Scales.from_statistics({"x": {"action": {"q01": [0.0]}}}, "x", "F", "openvla")
    with pytest.raises(ModelError, match="have no bounds"):
        Scales.of_space(Space(shape=(1,), low=-np.inf, high=np.inf), "openvla")


@pytest.mark.parametrize(
    ("gripper", "expected"), [("raw", [0.8, 0.2]), ("sign", [1.0, -1.0]), ("negative_sign", [-1.0, 1.0])]
)
def test_the_gripper_opens_as_the_simulator_has_it(gripper: Any, expected: list[float]) -> None:
    tokens = ActionTokens(10_000, 5001)  # bins so fine that values are nearly what they were
    scales = Scales("x", (0.0, 0.0), (1.0, 1.0), (True, False))
    ids_NK = tokens.ids(torch.tensor([[0.0, 0.8, 0.6, 0.2]]))  # two actions of two dimensions
    config = OpenVLAConfig(preset="tiny", gripper=gripper, chunk=2)
    found = simulator_actions(tokens.values(ids_NK), scales, config)
    assert found.shape == (1, 2, 2)
    assert found[0, :, 0].tolist() == pytest.approx([0.5, 0.8], abs=5e-4)
    assert found[0, :, 1].tolist() == pytest.approx(expected, abs=5e-4)


def test_a_simulator_may_take_some_of_the_dimensions() -> None:
    tokens, scales = ActionTokens(10_000, 5001), Scales("x", (-1.0,) * 4, (1.0,) * 4, (True,) * 4)
    ids_NK = tokens.ids(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))
    found = simulator_actions(tokens.values(ids_NK), scales, OpenVLAConfig(preset="tiny", action_dims=(0, 3)))
    assert found[0, 0].tolist() == pytest.approx([0.1, 0.4], abs=5e-4)


def test_spaces_that_the_model_cannot_serve_are_refused_by_name() -> None:
    unbound = support.OpenVLA(OpenVLAConfig(preset="tiny"))
    with pytest.raises(ModelError, match="needs pictures; the simulator shows none"):
        unbound.bind({"state": Space(shape=(3,))}, support.ACTION)
    two = {"images/a": Space(shape=(8, 8, 3)), "images/b": Space(shape=(8, 8, 3))}
    with pytest.raises(ModelError, match=r"model.camera .openvla.: .* several cameras; name one: a, b"):
        unbound.bind(two, support.ACTION)
    with pytest.raises(ModelError, match="no camera 'c'; it has: top"):
        support.tiny(camera="c")
    with pytest.raises(ModelError, match="the simulator's are discrete"):
        support.tiny(action=Space(n=3))
    with pytest.raises(ModelError, match=r"model.action_dims .openvla.: \[0, 5\]: the model writes 2"):
        support.tiny(action_dims=(0, 5))
    with pytest.raises(ModelError, match=r"1 dimensions of the model's 2 .* a simulator that takes 2"):
        support.tiny(action_dims=(1,))
    model, mute = support.tiny(), {"images/top": support.shown()["images/top"]}
    module = model.module()
    with pytest.raises(ModelError, match="needs an instruction and the simulator gives none"):
        model.act(module, mute, support.SEEDS)


def test_unusable_settings_are_refused_by_name() -> None:
    for options in (
        {"preset": "huge"},
        {"chunk": 0},
        {"crop_area": 0.0},
        {"temperature": 0.0},
        {"gripper": "up"},
        {"dtype": "int8"},
        {"act_dtype": "float16"},
        {"value_units": 0},
        {"action_dims": (-1,)},
    ):
        with pytest.raises(ConfigError, match=f"model.{next(iter(options))} .openvla."):
            OpenVLAConfig(**{"preset": "tiny", **options})  # type: ignore[arg-type]
    for options in ({}, {"preset": "tiny", "path": "x"}):
        with pytest.raises(ConfigError, match="set one of them; presets: tiny"):
            OpenVLAConfig(**options)


def test_tokens_of_somebody_elses_actions_by_hand() -> None:
    # three dimensions, of which the simulator takes the first and the last; the middle one stands still at 0
    scales = Scales("x", (-0.2, -1.0, 0.0), (0.2, 1.0, 1.0), (True, True, False))
    config = OpenVLAConfig(preset="tiny", action_dims=(0, 2), gripper="negative_sign")
    actions = torch.tensor([[[0.2, -1.0], [-0.2, 1.0]]])  # a gripper of -1 is written as 1, one of 1 as 0
    assert LLAMA.ids(model_values(actions, scales, config)).tolist() == [
        [31744, 31872, 31744, 31999, 31872, 31872]
    ]


def test_tokens_of_actions_stand_for_them_within_half_a_bin() -> None:
    scales = Scales("x", (-0.5, 0.0), (1.5, 4.0), (True, True))
    config = OpenVLAConfig(preset="tiny", chunk=3)
    unit = torch.rand(50, 3, 2, generator=torch.Generator().manual_seed(0))
    actions = torch.stack([unit[..., 0] * 2 - 0.5, unit[..., 1] * 4], dim=-1)
    ids_NK = LLAMA.ids(model_values(actions, scales, config))
    again = simulator_actions(LLAMA.values(ids_NK), scales, config)
    half_bin_A = torch.tensor([2.0, 4.0]) / 255 / 2
    assert bool(((again - actions).abs() <= half_bin_A + 1e-6).all())


def test_a_dimension_that_never_moves_is_written_as_its_middle() -> None:
    still = Scales("x", (3.0,), (3.0,), (True,))
    assert still.invert(torch.tensor([3.0, 9.0])).tolist() == [0.0, 0.0]
