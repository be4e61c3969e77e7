"""Decoders against the module's own full forward and transformers' generation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.fused_decoder import FusedDecoder
from rlinf_model_hf_lm.generic_decoder import GenericDecoder
from rlinf_model_hf_lm.model import HFLM
from rlinf_model_hf_lm.packed import can_pack
from torch import Tensor, nn

from rlinf_core.api import Decoder

PRESETS = ("char-llama", "tiny-llama", "tiny-qwen2", "tiny-qwen3")


def seeded_module(preset: str = "tiny-qwen2") -> nn.Module:
    module = HFLM(HFLMConfig(preset=preset)).module(seed=3).eval()
    with torch.no_grad():  # biases and norms start at 0 and 1, which would hide mistakes
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1:
                torch.manual_seed(len(name))
                parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def make(kind: str, module: nn.Module) -> Decoder:
    return GenericDecoder(module) if kind == "generic" else FusedDecoder(module, torch.float32)


def prompts_of(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, 21, length) for length in lengths]


@torch.no_grad()
def full_logits(module: nn.Module, ids: list[int]) -> Tensor:
    return module(input_ids=torch.tensor([ids])).logits[0, -1]


def check(module: nn.Module, logits_RV: Tensor, sequences: list[list[int]], tolerance: float = 2e-5) -> None:
    assert len(logits_RV) == len(sequences)
    for row, ids in zip(logits_RV, sequences, strict=True):
        torch.testing.assert_close(row, full_logits(module, ids), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", ["fused", "generic"])
@pytest.mark.parametrize("preset", PRESETS)
def test_greedy_decoding_of_unequal_prompts_equals_transformers(preset: str, kind: str) -> None:
    module = seeded_module(preset)
    prompts = prompts_of(3, 7, 1, 7)
    decoder = make(kind, module)
    tokens = decoder.prefill([2, 0, 1, 3], prompts).argmax(-1)
    produced = [tokens]
    for _ in range(9):
        produced.append(decoder.step([2, 0, 1, 3], produced[-1]).argmax(-1))
    ours = torch.stack(produced, dim=1)
    for row, prompt in zip(ours, prompts, strict=True):
        theirs = module.generate(
            torch.from_numpy(prompt)[None],
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert row.tolist() == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", ["fused", "generic"])
def test_rows_may_leave_and_others_enter_at_any_time(kind: str) -> None:
    module = seeded_module("tiny-qwen3")
    rng = np.random.default_rng(0)
    decoder = make(kind, module)
    running: dict[int, list[int]] = {}
    free = list(range(6))
    for round_number in range(60):
        if free and (not running or rng.random() < 0.3):
            count = int(rng.integers(1, len(free) + 1))
            slots = [free.pop(int(rng.integers(len(free)))) for _ in range(count)]
            prompts = prompts_of(*rng.integers(1, 4 + round_number % 23, count).tolist())
            prompts[-1] = prompts[0]  # an equal pair
            check(module, decoder.prefill(slots, prompts), [prompt.tolist() for prompt in prompts])
            running.update({s: p.tolist() for s, p in zip(slots, prompts, strict=True)})
        slots = rng.permutation(list(running)).tolist()
        tokens = torch.from_numpy(rng.integers(3, 21, len(slots)))
        for slot, token in zip(slots, tokens.tolist(), strict=True):
            running[slot].append(token)
        check(module, decoder.step(slots, tokens), [running[slot] for slot in slots])
        gone = [slot for slot in running if rng.random() < 0.15]
        decoder.release(gone)
        for slot in gone:
            del running[slot]
            free.append(slot)


def test_the_cache_does_not_grow_with_the_number_of_rows_served() -> None:
    module = seeded_module("char-llama")
    decoder = FusedDecoder(module, torch.float32)
    (prompt,) = prompts_of(5)
    for slot in range(40):  # one row always overlaps with the next
        decoder.prefill([slot], [prompt])
        for _ in range(8):
            slots = [s for s in (slot - 1, slot) if s >= 0]
            logits = decoder.step(slots, torch.full((len(slots),), 7))
        if slot:
            decoder.release([slot - 1])
    check(module, logits[-1:], [[*prompt.tolist(), *[7] * 8]])
    assert decoder._cache.keys.shape[3] < 200


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
            "rope_theta": 10000.0,
        },
    ],
    ids=["linear", "llama3"],
)
def test_scaled_rotary_positions_are_followed(rope: dict[str, object]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=128,
        rope_parameters=rope,
    )
    module = LlamaForCausalLM(config).eval()
    assert can_pack(module)
    decoder = FusedDecoder(module, torch.float32)
    prompts = prompts_of(40, 3)
    check(module, decoder.prefill([0, 1], prompts), [prompt.tolist() for prompt in prompts])
    logits = decoder.step([0, 1], torch.tensor([4, 9]))
    check(module, logits, [[*prompts[0].tolist(), 4], [*prompts[1].tolist(), 9]])


def test_a_sliding_window_is_left_to_the_generic_decoder() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=6,
    )
    module = MistralForCausalLM(config).eval()
    decoder = HFLM(HFLMConfig(preset="char-llama")).decoder(module, 4, 64)
    assert isinstance(decoder, GenericDecoder)
    prompts = prompts_of(4, 9)
    sequences = [prompt.tolist() for prompt in prompts]
    check(module, decoder.prefill([0, 1], prompts), sequences)
    for token in (5, 6, 7, 8):
        for sequence in sequences:
            sequence.append(token)
        check(module, decoder.step([0, 1], torch.tensor([token, token])), sequences)


def test_another_architecture_with_capped_logits_decodes() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=6,
        final_logit_softcapping=2.0,
    )
    module = Gemma2ForCausalLM(config).eval()
    decoder = HFLM(HFLMConfig(preset="char-llama")).decoder(module, 4, 64)
    prompts = prompts_of(4, 9)
    sequences = [prompt.tolist() for prompt in prompts]
    check(module, decoder.prefill([0, 1], prompts), sequences)
    decoder.release([0])
    check(module, decoder.step([1], torch.tensor([5])), [[*sequences[1], 5]])


def test_adapters_are_decoded_as_merged_and_the_base_stays_bit_identical() -> None:
    from peft import LoraConfig, get_peft_model

    base = seeded_module("tiny-qwen2")
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")).eval()
    decoder = FusedDecoder(adapted, torch.float32)
    prompts = prompts_of(4, 6)
    for update in range(5):
        torch.manual_seed(update)
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.2 * torch.randn_like(parameter))
        decoder.refresh()
        logits = decoder.prefill([0, 1], prompts)
        check(adapted, logits, [prompt.tolist() for prompt in prompts], tolerance=5e-5)
        decoder.release([0, 1])
    for name, tensor in adapted.state_dict().items():
        original = name.removeprefix("base_model.model.").replace(".base_layer", "")
        if "lora_" not in name:
            assert torch.equal(tensor, before[original]), name


def test_new_weights_are_seen_after_refresh() -> None:
    module = seeded_module("tiny-llama")
    decoder = FusedDecoder(module, torch.float32)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05)
    decoder.refresh()
    (prompt,) = prompts_of(5)
    check(module, decoder.prefill([0], [prompt]), [prompt.tolist()])


def test_bfloat16_decoding_stays_near_float32() -> None:
    model = HFLM(HFLMConfig(preset="tiny-qwen2", decode_dtype="bfloat16"))
    module = model.module(0)
    decoder = model.decoder(module, 4, 64)
    prompts = prompts_of(5, 8)
    logits = decoder.prefill([0, 1], prompts)
    assert logits.dtype == torch.float32
    check(module, logits, [prompt.tolist() for prompt in prompts], tolerance=0.05)
    assert not torch.equal(logits[0], full_logits(module, prompts[0].tolist()))
