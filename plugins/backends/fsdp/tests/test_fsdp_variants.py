"""Kinds of adapters: they load in plain peft, and the merged weights are the same policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from rlinf_core.cli.app import app
from rlinf_core.errors import ConfigError

SMALL = ("train.steps=2", "train.prompts_per_step=4", "eval.samples=2", "eval.every=0", "trackers=[]")
TASK = ("--algo=grpo", "--model=hf_lm", "--data=sort_digits", "reward={name: length, free: 0, limit: 8}")
ADAPTED = ("sampling.max_new_tokens=8", "lora.rank=4", "lora.alpha=8", "optimizer.lr=1e-2")
WORDS = (*TASK, "model.preset=tiny-qwen2", *SMALL, *ADAPTED)
VARIANTS = ("lora", "rslora", "dora")


def train(run: Path, *words: str) -> Path:
    done = CliRunner().invoke(app, ["train", f"--output={run}", *WORDS, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return run


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(40, 60)[None]
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=ids).logits
    return found


@pytest.fixture(scope="module", params=VARIANTS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    run = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, train(run, f"lora.variant={request.param}", "--engine=inline", "--ranks=1")


def test_adapters_load_in_peft_and_say_what_the_merged_model_says(trained: tuple[str, Path]) -> None:
    variant, run = trained
    merged = AutoModelForCausalLM.from_pretrained(run / "export", dtype=torch.float32)
    said = logits(merged)
    config = peft.LoraConfig.from_pretrained(str(run / "export" / "adapter"))
    assert (config.use_rslora, config.use_dora) == (variant == "rslora", variant == "dora")
    weights = load_file(run / "export" / "adapter" / "adapter_model.safetensors")
    assert any("lora_magnitude_vector" in name for name in weights) == (variant == "dora")
    base = AutoModelForCausalLM.from_pretrained(run / "export", dtype=torch.float32)
    start = train(
        run.parent / "start", "train.steps=0", f"lora.variant={variant}", "--engine=inline", "--ranks=1"
    )
    before = AutoModelForCausalLM.from_pretrained(start / "export", dtype=torch.float32)
    assert not torch.allclose(logits(before), said, atol=1e-3)
    base.load_state_dict(before.state_dict())
    adapted = peft.PeftModel.from_pretrained(base, run / "export" / "adapter")
    torch.testing.assert_close(logits(adapted), said, rtol=1e-4, atol=1e-5)


def test_the_policy_that_generates_is_the_one_that_trains(trained: tuple[str, Path]) -> None:
    _, run = trained
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2]
    assert all(record["train/logprob_mismatch_max"] < 1e-4 for record in records[1:])
    assert records[2]["train/grad_norm"] > 0


def test_what_the_rank_is_divided_by_is_its_root_in_rslora(tmp_path: Path) -> None:
    """Rank 4: alpha / 4 against alpha / 2; with equal adapters the difference from the base doubles."""
    from rlinf_core.adapters import adapted_module
    from rlinf_core.api import LoRAConfig
    from rlinf_core.plugins import plugins

    spec = plugins().get("models", "hf_lm")
    moved = []
    for variant in ("lora", "rslora"):
        model = spec.load()(spec.config(preset="tiny-qwen2"))
        adapted: Any = adapted_module(model, LoRAConfig(rank=4, alpha=8.0, variant=variant), 0)
        layer = adapted.base_model.model.model.layers[0].self_attn.q_proj
        torch.nn.init.ones_(layer.lora_B["default"].weight)
        moved.append(layer.get_delta_weight("default"))
    torch.testing.assert_close(moved[1], 2 * moved[0])


def test_an_engine_that_does_not_know_a_variant_says_what_it_knows() -> None:
    words = ["train", *WORDS, "--rollout=vllm", "lora.variant=dora"]
    with pytest.raises(ConfigError, match=r"'dora' is not what rollout 'vllm' can do; it knows lora, rslora"):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_two_ranks_train_what_one_trains(trained: tuple[str, Path], sharding: str, tmp_path: Path) -> None:
    variant, run = trained
    words = (f"lora.variant={variant}", f"backend.sharding={sharding}", "--ranks=2", "--mode=collocated")
    two = train(tmp_path / "run", *words)
    ours, theirs = (load_file(each / "export" / "model.safetensors") for each in (two, run))
    apart = [(ours[name] - value).abs() > 1e-4 for name, value in theirs.items()]
    share = sum(int(each.sum()) for each in apart) / sum(each.numel() for each in apart)
    assert share < 0.02  # rounding decides where a first gradient is nearly 0
