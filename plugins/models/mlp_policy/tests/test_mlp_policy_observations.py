"""Values and pictures of the perceptron policy, against numbers worked out by hand or by torch's layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_mlp_policy.config import MLPPolicyConfig
from rlinf_model_mlp_policy.model import MLPPolicy
from torch.nn import functional

from rlinf_core.api import Space
from rlinf_core.errors import ConfigError, ModelError
from rlinf_core.types import Trajectory

BOX = Space(shape=(1,))
STATE = {"state": Space(shape=(2,))}
CAMERAS = {f"images/{name}": Space(shape=(36, 44, 3), low=0.0, high=255.0) for name in ("wrist", "front")}
WANT = frozenset({"logprobs", "values"})


def policy(
    spaces: dict[str, Space], action: Space = BOX, *, valued: bool = True, **options: Any
) -> MLPPolicy:
    model = MLPPolicy(MLPPolicyConfig(**{"hidden": (4,), **options}))
    model.bind(spaces, action)
    if valued:
        model.add_value_head()
    return model


def fill(module: torch.nn.Module, **weights: Any) -> None:
    with torch.no_grad():
        for name, value in weights.items():
            module.get_parameter(name.replace("__", ".")).copy_(torch.tensor(value))


def pictures(rows: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    return {
        name: torch.randint(256, (rows, *space.shape), generator=random, dtype=torch.uint8)
        for name, space in CAMERAS.items()
    }


def trajectory(observations: dict[str, torch.Tensor], actions: torch.Tensor) -> Trajectory:
    return Trajectory(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(len(actions), dtype=bool),
        logprobs=np.zeros(len(actions), dtype=np.float32),
        weight_version=0,
        observations={name: value.numpy() for name, value in observations.items()},
        actions=actions.numpy(),
    )


def test_a_separate_value_is_that_of_its_own_layers() -> None:
    module = policy(STATE, hidden=(2,), activation="relu").module()
    fill(module, value__0__weight=[[1.0, 2.0], [-1.0, 0.5]], value__0__bias=[0.5, 0.0])
    fill(module, value__2__weight=[[3.0, -2.0]], value__2__bias=[0.25])
    state = torch.tensor([[1.0, -0.25], [-2.0, 4.0]])
    # relu(1 - .5 + .5, -1 - .125) = (1, 0); relu(-2 + 8 + .5, 2 + 2) = (6.5, 4)
    assert module({"state": state}, values=True)[1].tolist() == [3.25, 3 * 6.5 - 2 * 4 + 0.25]


def test_a_shared_value_reads_the_last_hidden_layer_of_the_policy() -> None:
    module = policy(STATE, hidden=(2,), activation="relu", value_head="shared").module()
    fill(module, layers__0__weight=[[1.0, 0.0], [0.0, 1.0]], layers__0__bias=[0.0, 0.0])
    fill(module, value__0__weight=[[2.0, 10.0]], value__0__bias=[-1.0])
    assert module({"state": torch.tensor([[3.0, -1.0], [0.5, 2.0]])}, values=True)[1].tolist() == [5.0, 20.0]
    assert {name.partition(".")[0] for name, _ in module.named_parameters()} == {"layers", "log_std", "value"}


@pytest.mark.parametrize("head", ["separate", "shared"])
@pytest.mark.parametrize("action", [BOX, Space(n=3)])
def test_values_of_rows_are_those_of_their_states(head: str, action: Space) -> None:
    model = policy(STATE, action, value_head=head)
    module = model.module(1)
    state = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    sample = model.act(module, {"state": state}, [1, 2, 3])
    row = trajectory({"state": state}, sample.actions)
    outputs = model.policy_outputs(module, model.collate([row], width=5), WANT)
    assert outputs.values_BT.shape == (1, 5)
    torch.testing.assert_close(outputs.values_BT[0, :3], module({"state": state}, values=True)[1])
    outputs.values_BT.sum().backward()
    reached = {name.partition(".")[0] for name, each in module.named_parameters() if each.grad is not None}
    assert reached == ({"value"} if head == "separate" else {"value", "layers"})


@pytest.mark.parametrize("spaces", [STATE, {**STATE, **CAMERAS}], ids=["state", "pictures"])
def test_a_value_head_changes_nothing_of_the_actions_and_is_built_only_when_asked_for(spaces: Any) -> None:
    seen = {"state": torch.ones(1, 2), **pictures(1)}
    seen = {name: seen[name] for name in spaces}
    without, beside = policy(spaces, valued=False), policy(spaces)
    module = without.module(3)
    assert not any(name.startswith("value") for name in module.state_dict())
    plain = without.act(module, seen, [5])
    assert torch.equal(plain.actions, beside.act(beside.module(3), seen, [5]).actions)
    row = trajectory(seen, plain.actions)
    with pytest.raises(ModelError, match=r"no value head: call add_value_head\(\) before module\(\)"):
        without.policy_outputs(module, without.collate([row]), WANT)
    with pytest.raises(ModelError, match=r"model.value_head .mlp_policy.: none: the algorithm needs values"):
        policy(STATE, value_head="none")


def test_values_alone_judge_no_action() -> None:
    model = policy(STATE)
    module = model.module(1)
    row = trajectory({"state": torch.ones(2, 2)}, torch.zeros(2, 1, 1))
    both = model.policy_outputs(module, model.collate([row], width=3), WANT)
    alone = model.policy_outputs(module, model.collate([row], width=3), frozenset({"values"}))
    assert alone.logprobs_BT.tolist() == [[0.0, 0.0, 0.0]]
    assert not alone.logprobs_BT.requires_grad
    assert torch.equal(alone.values_BT[:, :2], both.values_BT[:, :2])


@pytest.mark.parametrize(("written", "read"), [(True, False), (False, True)])
def test_an_exported_policy_starts_a_run_that_has_a_value_head_or_not(
    written: bool, read: bool, tmp_path: Path
) -> None:
    model = policy(STATE, valued=written)
    module = model.module(3)
    model.export(iter(module.state_dict().items()), tmp_path)
    again, fresh = (policy(STATE, valued=read, path=path).module(9) for path in (str(tmp_path), ""))
    for name, tensor in again.state_dict().items():
        source = fresh if name.startswith("value") else module
        assert torch.equal(tensor, source.state_dict()[name]), name


def test_an_exported_value_head_comes_back_and_one_of_another_kind_is_refused(tmp_path: Path) -> None:
    model = policy(STATE)
    module = model.module(3)
    model.export(iter(module.state_dict().items()), tmp_path)
    again = policy(STATE, path=str(tmp_path)).module(9).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in module.state_dict().items())
    with pytest.raises(
        ModelError, match=r"value.0.bias is \(4,\), this run needs \(1,\); .*model.value_head"
    ):
        policy(STATE, path=str(tmp_path), value_head="shared").module()


def test_features_of_pictures_are_those_of_three_convolutions_and_stand_behind_the_state() -> None:
    model = policy({**STATE, **CAMERAS}, image_channels=(2, 3, 4), image_features=5)
    module = model.module(7)
    seen = {"state": torch.tensor([[1.0, 2.0]]), **pictures(1)}
    features = [seen["state"]]
    for camera in ("front", "wrist"):
        encoder = module.pictures[camera]
        maps = seen[f"images/{camera}"].permute(0, 3, 1, 2).double() / 255
        for layer, stride in ((0, 4), (2, 2), (4, 1)):
            weight, bias = (
                getattr(encoder.convolutions[layer], name).double() for name in ("weight", "bias")
            )
            maps = functional.conv2d(maps, weight, bias, stride=stride).relu()
        assert maps.shape == (1, 4, 1, 2)  # 36 x 44 -> 8 x 10 -> 3 x 4 -> 1 x 2
        features.append((maps.flatten(1) @ encoder.features[0].weight.double().T).relu().float())
    hidden = torch.tanh(module.layers[0](torch.cat(features, 1)))
    torch.testing.assert_close(module(seen)[0], module.layers[2](hidden), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spaces", [{**STATE, **CAMERAS}, CAMERAS])
def test_pictures_give_the_same_in_acting_and_in_training_whatever_stands_beside(spaces: Any) -> None:
    model = policy(spaces)
    module = model.module(3)
    seen = {"state": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), **pictures(3)}
    seen = {name: seen[name] for name in spaces}
    sample = model.act(module, seen, [1, 2, 3])
    alone = model.act(module, {name: value[1:2] for name, value in seen.items()}, [2])
    torch.testing.assert_close(alone.actions[0], sample.actions[1])
    short = trajectory({name: value[:1] for name, value in seen.items()}, sample.actions[:1])
    inputs = model.collate([trajectory(seen, sample.actions), short], width=4)
    assert inputs["images/front"].dtype == torch.uint8
    outputs = model.policy_outputs(module, inputs, WANT)
    torch.testing.assert_close(outputs.logprobs_BT[0, :3], sample.logprobs_N, atol=1e-5, rtol=0)
    values_N = module(seen, values=True)[1]
    torch.testing.assert_close(outputs.values_BT[0, :3], values_N, atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs.values_BT[1, 0], values_N[0], atol=1e-5, rtol=0)
    outputs.logprobs_BT.sum().backward()
    assert all(part.convolutions[0].weight.grad.abs().sum() > 0 for part in module.pictures.values())


def test_an_exported_policy_with_pictures_comes_back(tmp_path: Path) -> None:
    model = policy({**STATE, **CAMERAS})
    module = model.module(3)
    model.export(iter(module.state_dict().items()), tmp_path)
    again = policy({**STATE, **CAMERAS}, path=str(tmp_path)).module(seed=9)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in module.state_dict().items())
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["pictures"] == {"front": [36, 44, 3], "wrist": [36, 44, 3]}
    assert (record["states"], record["value_head"]) == (2, "separate")


def test_pictures_that_are_too_small_and_unusable_options_are_refused_by_name() -> None:
    small = {"images/front": Space(shape=(32, 64, 3))}
    with pytest.raises(
        ModelError, match="needs pictures of 36 x 36 pixels or more; the simulator shows 32 x 64"
    ):
        policy(small).module()
    for options in ({"value_head": "two"}, {"image_channels": (1, 2)}, {"image_features": 0}):
        with pytest.raises(ConfigError, match=f"model.{next(iter(options))}"):
            MLPPolicyConfig(**options)  # type: ignore[arg-type]
