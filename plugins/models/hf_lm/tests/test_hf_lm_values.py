"""Values against the head's product with hidden states; all else is as it is without a head."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM
from torch import Tensor, nn

from rlinf_core.types import Prompt, Sample, Sampling

VALUES = frozenset({"values"})
BOTH = frozenset({"logprobs", "values"})


def valued(preset: str = "char-llama", **options: Any) -> tuple[HFLM, Any]:
    """A model and a module whose head does not say 0."""
    model = HFLM(HFLMConfig(preset=preset, **options))
    model.add_value_head()
    module: Any = model.module(1)
    with torch.no_grad():
        module.value_head.weight.normal_(generator=torch.Generator().manual_seed(3))
        module.value_head.bias.fill_(0.25)
    return model, module


def sample(prompt: list[int], response: list[int]) -> Sample:
    return Sample(
        group=0,
        replica=0,
        seed=0,
        mask=np.ones(len(response), np.bool_),
        logprobs=np.zeros(len(response), np.float32),
        weight_version=0,
        prompt=Prompt(0, np.array(prompt), ""),
        response_ids=np.array(response),
    )


def rows() -> list[Sample]:
    """Responses of different lengths to two prompts, so that packing is worth it."""
    random = np.random.default_rng(2)
    prompts = [random.integers(3, 21, n).tolist() for n in (12, 7)]
    return [
        sample(prompts[i % 2], random.integers(2, 21, n).tolist()) for i, n in enumerate((5, 1, 3, 8, 2, 6))
    ]


def by_hand(module: Any, row: Sample) -> Tensor:
    """V of the state before each token: the head on what the last hidden layer says at the token before."""
    ids = torch.tensor([[*row.prompt.token_ids.tolist(), *row.response_ids.tolist()]])
    hidden_LE = module.base_model(input_ids=ids).last_hidden_state[0].double()
    values_L = hidden_LE @ module.value_head.weight[0].double() + module.value_head.bias.double()
    return values_L[len(row.prompt.token_ids) - 1 : -1]


@pytest.mark.parametrize("want", [VALUES, BOTH], ids=["alone", "beside log-probabilities"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("preset", ["char-llama", "tiny-qwen2"])
def test_a_value_is_the_head_on_the_hidden_state_before_the_token(
    preset: str, packed: bool, want: frozenset[Any]
) -> None:
    model, module = valued(preset, packing="auto" if packed else "never")
    batch = rows()
    found = model.policy_outputs(module, model.collate(batch, width=10), want, Sampling(temperature=0.5))
    assert found.values_BT is not None
    assert (found.values_BT.shape, found.values_BT.dtype) == ((6, 10), torch.float32)
    for values_T, row in zip(found.values_BT, batch, strict=True):
        length = len(row.response_ids)
        torch.testing.assert_close(values_T[:length].double(), by_hand(module, row), rtol=0, atol=1e-5)
        assert not values_T[length:].any()
    assert bool(found.logprobs_BT.any()) == ("logprobs" in want)
    assert found.logprobs_BT.requires_grad == ("logprobs" in want)


def test_a_forward_of_the_architecture_itself_gives_values_too() -> None:
    from rlinf_model_hf_lm import value
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    module: Any = Gemma2ForCausalLM(Gemma2Config(**sizes, **heads, final_logit_softcapping=0.5))
    value.attach(module)
    nn.init.normal_(module.value_head.weight)
    model, batch = HFLM(HFLMConfig(preset="char-llama")), rows()
    plain = model.policy_outputs(module, model.collate(batch), frozenset({"logprobs"}))
    for want in (VALUES, BOTH):
        found = model.policy_outputs(module, model.collate(batch), want)
        for values_T, row in zip(found.values_BT, batch, strict=True):
            expected_T = by_hand(module, row)
            torch.testing.assert_close(values_T[: len(expected_T)].double(), expected_T, rtol=0, atol=1e-5)
    assert torch.equal(found.logprobs_BT, plain.logprobs_BT)
    assert not module.base_model._forward_hooks


def test_the_head_changes_no_logprob_no_weight_and_no_random_number() -> None:
    plain, (model, module) = HFLM(HFLMConfig(preset="tiny-llama")), valued("tiny-llama")
    torch.manual_seed(1)
    state = torch.get_rng_state()
    fresh: Any = model.module(1)
    assert torch.equal(state, torch.get_rng_state())
    assert not fresh.value_head.weight.any()
    assert not fresh.value_head.bias.any()
    bare, batch = plain.module(1), rows()
    own = bare.state_dict()
    assert set(module.state_dict()) - set(own) == {"value_head.weight", "value_head.bias"}
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in own.items())
    expected = plain.policy_outputs(bare, plain.collate(batch), frozenset({"logprobs"})).logprobs_BT
    assert torch.equal(model.policy_outputs(module, model.collate(batch), BOTH).logprobs_BT, expected)


def test_values_alone_compute_no_logits() -> None:
    model, module = valued()
    module.lm_head.weight.data.fill_(torch.nan)
    found = model.policy_outputs(module, model.collate(rows()), VALUES, Sampling(min_new_tokens=2))
    assert found.values_BT is not None
    assert found.values_BT.isfinite().all()
    assert not found.logprobs_BT.any()


def test_the_gradient_of_a_value_reaches_the_head_and_the_trunk() -> None:
    model, module = valued()
    (row,) = batch = [sample([3, 4, 5], [6, 7, 2])]
    found = model.policy_outputs(module, model.collate(batch), VALUES)
    found.values_BT.sum().backward()
    assert module.value_head.bias.grad.tolist() == [3.0]
    ids = torch.tensor([[*row.prompt.token_ids.tolist(), *row.response_ids.tolist()]])
    hidden_LE = module.base_model(input_ids=ids).last_hidden_state[0, 2:5]
    torch.testing.assert_close(module.value_head.weight.grad[0], hidden_LE.sum(0), rtol=1e-4, atol=1e-5)
    assert all(part.mlp.down_proj.weight.grad.any() for part in model.blocks(module))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_are_computed_in_float32_whatever_the_trunk_and_autocast(dtype: str) -> None:
    model, module = valued(dtype=dtype)
    assert module.value_head.weight.dtype == torch.float32
    inputs = model.collate(rows())
    with torch.autocast("cpu", torch.bfloat16):
        found = model.policy_outputs(module, inputs, BOTH)
        seen: list[Tensor] = []
        with module.value_head.register_forward_hook(lambda _head, args, _out: seen.append(args[0])):
            model.policy_outputs(module, inputs, VALUES)
    assert found.values_BT is not None
    assert found.values_BT.dtype == seen[0].dtype == torch.float32


def test_an_export_is_bit_for_bit_that_of_a_model_without_a_head(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, module = valued("tiny-llama")
    model.export(iter(module.state_dict().items()), tmp_path / "valued")
    plain = HFLM(HFLMConfig(preset="tiny-llama"))
    plain.export(iter(plain.module(1).state_dict().items()), tmp_path / "plain")
    names = sorted(file.name for file in (tmp_path / "plain").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "valued").iterdir())
    for name in names:
        assert (tmp_path / "valued" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes(), name
    _, notes = AutoModelForCausalLM.from_pretrained(tmp_path / "valued", output_loading_info=True)
    assert not notes["unexpected_keys"]
    again = HFLM(HFLMConfig(path=str(tmp_path / "valued")))
    again.add_value_head()
    loaded: Any = again.module(0)
    assert torch.equal(loaded.lm_head.weight, module.lm_head.weight)
    assert not loaded.value_head.weight.any()


def test_a_module_with_a_head_is_copied_and_decodes_as_one_without() -> None:
    model, module = valued("tiny-qwen3")
    plain = HFLM(HFLMConfig(preset="tiny-qwen3"))
    twin = copy.deepcopy(module)
    twin.load_state_dict(module.state_dict())
    prompt = [np.array([3, 4, 5])]
    theirs = plain.decoder(plain.module(1), 1, 16).prefill([0], prompt)
    for each in (module, twin):
        assert torch.equal(model.decoder(each.eval(), 1, 16).prefill([0], prompt), theirs)
    assert torch.equal(twin.value_head.weight, module.value_head.weight)
    assert model.value_head(twin) is twin.value_head
    assert plain.value_head(plain.module(1)) is None
