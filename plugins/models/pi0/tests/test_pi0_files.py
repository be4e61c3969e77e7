"""Checkpoints, tokenizers and statistics on disk; pictures and prompts as the network takes them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_core.errors import ModelError

sys.path.insert(0, str(Path(__file__).parent))
import pi0_ranks as support
from rlinf_model_pi0.pictures import prepare
from rlinf_model_pi0.prompts import BOS, VOCABULARY, Prompts, byte_tokenizer

SEEDS = [1, 2, 3, 4]
MOMENTS = {"mean": [1.0, -1.0, 0.5], "std": [2.0, 0.5, 1.0], "q01": [-1.0, 0.0, 2.0], "q99": [3.0, 1.0, 2.0]}
STATE = {"mean": [1.0] * 5, "std": [4.0] * 5}


def exported(folder: Path, **options: Any) -> tuple[Any, Any]:
    """A model that wrote its network to `folder`, and the network. Any: a Pi0 and its module."""
    model = support.flow(**options)
    module = support.wake(model.module(3))
    model.export(iter(module.state_dict().items()), folder)
    return model, module


def test_an_exported_flow_comes_back_bit_for_bit_and_acts_the_same(tmp_path: Path) -> None:
    model, module = exported(tmp_path, valued=True, noise="learned")
    again = support.flow(path=str(tmp_path))
    back = again.module(9)
    own = {name: tensor for name, tensor in module.state_dict().items() if "_head." not in name}
    assert back.state_dict().keys() == own.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in back.state_dict().items())
    seen = support.shown()
    assert torch.equal(
        again.act(back, seen, SEEDS, greedy=True).actions, model.act(module, seen, SEEDS, greedy=True).actions
    )


def test_transformers_loads_an_export_and_it_has_the_names_of_published_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, PI0ForConditionalGeneration

    _, module = exported(tmp_path)
    theirs, report = PI0ForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in theirs.state_dict().items())
    names = set(load_file(tmp_path / "model.safetensors"))
    assert {"action_in_proj.weight", "action_out_proj.bias", "state_proj.weight"} <= names
    assert "paligemma_with_expert.gemma_expert.model.layers.0.mlp.up_proj.weight" in names
    assert AutoTokenizer.from_pretrained(tmp_path).encode("ab", add_special_tokens=False) == [101, 102]


def test_the_type_of_parameters_is_that_of_the_config_but_heads_are_float32(tmp_path: Path) -> None:
    exported(tmp_path)
    module = support.flow(path=str(tmp_path), dtype="bfloat16", valued=True).module()
    kinds = {name: parameter.dtype for name, parameter in module.named_parameters()}
    assert kinds.pop("value_head.weight") == kinds.pop("value_head.bias") == torch.float32
    assert set(kinds.values()) == {torch.bfloat16}
    model = support.flow(path=str(tmp_path), dtype="bfloat16", valued=True)
    sample = model.act(module, support.shown(), SEEDS)
    assert sample.actions.dtype == sample.logprobs_N.dtype == torch.float32
    row = support.episode(sample, support.shown(), slice(0, 4))
    row.executed = None
    outputs = model.policy_outputs(module, model.collate([row]), support.WANT)
    torch.testing.assert_close(outputs.logprobs_BT[0], sample.logprobs_N, atol=2.0, rtol=0.05)


def test_a_directory_without_weights_or_tokenizer_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no directory with a config\.json"):
        support.flow(path=str(tmp_path))
    exported(tmp_path)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    model = support.flow(path=str(tmp_path))
    with pytest.raises(ModelError, match=r"no tokenizer in .*; set model\.tokenizer"):
        model.act(model.module(), support.shown(), SEEDS)
    elsewhere = tmp_path / "tokens"
    byte_tokenizer().save_pretrained(elsewhere)
    model = support.flow(path=str(tmp_path), tokenizer=str(elsewhere))
    assert model.act(model.module(), support.shown(), SEEDS).actions.shape == (4, 4, 3)


def test_a_checkpoint_of_another_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match="holds a 'llama' model, not pi0"):
        support.flow(path=str(tmp_path))


def test_a_checkpoint_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    exported(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["state_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"1 weights in .* do not fit; embed_action_time\.state_proj\.weight is missing"
    ):
        support.flow(path=str(tmp_path)).module()


def test_statistics_turn_units_into_actions_and_states_into_units(tmp_path: Path) -> None:
    """mean_std: unit 2 of the first dimension is 1 + 2 * 2; quantiles: -1 is q01, 1 is q99, a dimension whose
    quantiles are equal stays there. A state of 5 is (5 - 1) / 4."""
    file = tmp_path / "numbers.json"
    file.write_text(
        json.dumps(
            {"norm_stats": {"state": {**STATE, "q01": [0.0] * 5, "q99": [10.0] * 5}, "actions": MOMENTS}}
        )
    )
    units = torch.zeros(1, 8, 32)
    units[0, 0, :3] = torch.tensor([2.0, -1.0, 1.0])
    shown = {"state": torch.full((1, 5), 5.0)}
    bound = support.flow(statistics=str(file))._bound
    torch.testing.assert_close(bound.actions(units)[0, 0], torch.tensor([5.0, -1.5, 1.5]))
    torch.testing.assert_close(bound.state(shown)[0, :6], torch.tensor([1.0] * 5 + [0.0]))
    assert bound.state(shown).shape == (1, 32)
    bound = support.flow(statistics=str(file), normalization="quantiles")._bound
    torch.testing.assert_close(bound.actions(units)[0, 0], torch.tensor([5.0, 0.0, 2.0]), atol=2e-6, rtol=0)
    torch.testing.assert_close(bound.state(shown)[0, 0], torch.tensor(0.0), atol=1e-6, rtol=0)


def test_statistics_beside_the_weights_are_found_and_exported(tmp_path: Path) -> None:
    exported(tmp_path / "plain")
    shutil.copytree(tmp_path / "plain", tmp_path / "theirs")
    flat = {f"state_{k}": v for k, v in STATE.items()} | {f"actions_{k}": MOMENTS[k] for k in ("mean", "std")}
    (tmp_path / "theirs" / "processor_config.json").write_text(json.dumps({"chunk_size": 8, **flat}))
    model, module = exported(tmp_path / "ours", path=str(tmp_path / "theirs"))
    again = support.flow(path=str(tmp_path / "ours"))
    assert json.loads((tmp_path / "ours" / "statistics.json").read_text())["state"] == STATE
    seen = support.shown()
    plain = support.flow(path=str(tmp_path / "plain"))
    actions, same, others = (made.act(module, seen, SEEDS).actions for made in (model, again, plain))
    assert torch.equal(actions, same)
    assert not torch.allclose(actions, others, atol=0.1)


def test_unusable_statistics_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    with pytest.raises(ModelError, match=r"model\.statistics .* cannot read"):
        support.flow(statistics=str(file))
    for content, message in (
        ({"joints": {}}, "has neither 'state' nor 'actions'"),
        ({"state": STATE}, r"takes actions\.mean, but .* has state\.mean, state\.std"),
        (
            {"state": STATE, "actions": {"mean": [0.0], "std": [1.0]}},
            "has 1 numbers for actions, the simulator's has 3",
        ),
    ):
        file.write_text(json.dumps(content))
        with pytest.raises(ModelError, match=message):
            support.flow(statistics=str(file))


def test_pictures_keep_their_proportions_between_black_bars() -> None:
    """White of 28 x 56 pixels, made 56 wide: 14 black rows above and below. Brightness 51 of 255 is -0.6."""
    wide = torch.full((1, 28, 56, 3), 255, dtype=torch.uint8)
    found = prepare(wide, 56)
    assert found.shape == (1, 3, 56, 56)
    assert torch.equal(found[:, :, :14], torch.full((1, 3, 14, 56), -1.0))
    assert torch.equal(found[:, :, 14:42], torch.ones(1, 3, 28, 56))
    assert torch.equal(found[:, :, 42:], torch.full((1, 3, 14, 56), -1.0))
    large = torch.full((1, 112, 112, 3), 51, dtype=torch.uint8)
    torch.testing.assert_close(prepare(large, 56), torch.full((1, 3, 56, 56), -0.6))
    halves = torch.zeros(1, 112, 112, 3, dtype=torch.uint8)
    halves[:, :, 56:, 1] = 255
    found = prepare(halves, 56)
    assert float(found[0, 1, 10, 50]) == pytest.approx(1.0)
    assert float(found[0, 1, 10, 5]) == float(found[0, 0, 10, 50]) == -1.0


def test_a_prompt_is_placeholders_a_bos_the_cleaned_text_and_a_line_end() -> None:
    """Bytes are tokens from 4 on: 'a' is 101, 'b' 102, a space 36, a line end 14."""
    prompts = Prompts(byte_tokenizer(), VOCABULARY, room=6)
    found = prompts.encode([" a_b\n", ""], image_tokens=2)
    assert found.tolist() == [
        [VOCABULARY, VOCABULARY, BOS, 101, 36, 102, 14, -1],
        [VOCABULARY, VOCABULARY, BOS, 14, -1, -1, -1, -1],
    ]
    with pytest.raises(ModelError, match=r"model\.prompt_tokens .* takes 7 tokens, there is room for 6"):
        prompts.encode(["abcde"], 0)


def test_without_an_instruction_the_prompt_of_the_config_is_used() -> None:
    seen = {name: tensor for name, tensor in support.shown().items() if name != "instruction"}
    found = [support.flow(prompt=prompt)._bound.collate_shown(seen)["tokens"] for prompt in ("lift", "")]
    told = support.flow(prompt="wait")._bound.collate_shown(support.shown())["tokens"]
    assert torch.equal(found[0][0], told[1])
    assert not torch.equal(found[1][0], told[1])
