"""One rank of the fsdp backend: guards, precision, adapters, and memory."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
import torch
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_backend_fsdp.trainer import FSDPTrainer
from torch import Tensor

from rlinf_core.adapters import adapted_module
from rlinf_core.api import LoRAConfig, OptimizerConfig
from rlinf_core.errors import CheckpointError, ConfigError

sys.path.insert(0, str(Path(__file__).parent))
import fsdp_ranks as support

EVERYTHING = list(range(support.ROWS))


@pytest.mark.parametrize("split", [[[0], [1, 2, 3], [], [4, 5, 6]], [[i] for i in EVERYTHING]])
def test_any_micro_batch_split_gives_the_same_gradient(split: list[list[int]]) -> None:
    whole, parts = support.build(), support.build()
    for trainer, rows in ((whole, [EVERYTHING]), (parts, split)):
        for chosen in rows:
            trainer.accumulate(support.batch(0, chosen), support.loss)
    for (name, one), (_, other) in zip(whole.policy.named(), parts.policy.named(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert float((one.grad - other.grad).norm() / one.grad.norm()) < 1e-6, name


def test_a_step_equals_adamw_of_torch_on_the_mean_loss() -> None:
    trainer = support.build()
    plain = support.TinyLlama(None).module(3).eval()
    adamw = torch.optim.AdamW(plain.parameters(), lr=0.5e-2, eps=1e-6, weight_decay=0.1)
    rows = support.batch(0, EVERYTHING)
    outputs = support.TinyLlama(None).policy_outputs(plain, rows.inputs, support.LOGPROBS)
    (support.loss(outputs, rows).total / 42.0).backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.05)
    adamw.step()
    assert support.train(trainer, [0]) == pytest.approx([float(norm)], rel=1e-5)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(support.weights(trainer)[name], parameter.data, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted() -> None:
    trainer = support.build()
    before = support.weights(trainer)
    rows = support.batch(0, EVERYTHING)
    rows.advantages_BT[0, 0] = torch.nan
    trainer.accumulate(rows, support.loss)
    stats = trainer.step(42.0)
    assert stats.skipped
    assert (trainer.version, trainer.optimizer.skipped_steps) == (1, 1)
    assert all(torch.equal(before[name], weight) for name, weight in support.weights(trainer).items())
    assert not trainer.step(1.0).skipped, "the bad gradient is gone"


def test_bf16_is_close_to_fp32_and_leaves_parameters_in_float32() -> None:
    full, half = support.build(), support.build(precision="bf16")
    norms = [support.train(trainer, range(5)) for trainer in (full, half)]
    assert norms[0] != norms[1]
    assert norms[1] == pytest.approx(norms[0], rel=0.1)
    assert {weight.dtype for weight in support.weights(half).values()} == {torch.float32}


def test_gradient_checkpointing_changes_nothing() -> None:
    plain, recomputed = support.build(), support.build(gradient_checkpointing=True)
    for trainer in (plain, recomputed):
        support.train(trainer, range(2))
    expected = support.weights(plain)
    for name, weight in support.weights(recomputed).items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-6, atol=1e-7)


def test_the_weights_of_one_rank_are_the_parameters_themselves() -> None:
    trainer = support.build()
    parameters = dict(trainer.policy.named())
    for bucket in trainer.weights():
        assert all(tensor is parameters[name] for name, tensor in bucket.tensors.items())


def test_adapters_depend_on_the_seed_alone_and_spare_the_output_head() -> None:
    first, again, other = (
        dict(adapted_module(support.TinyLlama(None), support.LORA, seed).named_parameters())
        for seed in (1, 1, 2)
    )
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert not any("lm_head" in key for key, tensor in first.items() if tensor.requires_grad)
    with pytest.raises(ConfigError, match=r"lora.target_modules.*q_porj; there are .*q_proj"):
        adapted_module(support.TinyLlama(None), LoRAConfig(rank=2, target_modules=("q_porj",)))


def test_a_missing_or_foreign_checkpoint_names_the_path_and_the_cause(tmp_path: Path) -> None:
    trainer = support.build()
    with pytest.raises(CheckpointError, match=r"no readable checkpoint in .*nowhere"):
        trainer.load(tmp_path / "nowhere")
    trainer.save(tmp_path / "whole")
    with pytest.raises(CheckpointError, match=r"whole lacks \d+ tensors"):
        support.build(support.LORA).load(tmp_path / "whole")
    next((tmp_path / "whole").glob("shard-*")).write_bytes(b"\x80\x04junk")
    with pytest.raises(CheckpointError, match="whole"):
        trainer.load(tmp_path / "whole")


def test_a_world_that_nobody_set_up_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match="MASTER_ADDR"):
        support.build()


def test_memory_stays_flat_over_many_steps() -> None:
    trainer = support.build(optimizer=OptimizerConfig(lr=1e-4))
    support.train(trainer, range(20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    support.train(trainer, range(200))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024, "KiB"


@pytest.mark.parametrize("lora", [support.NO_LORA, support.LORA], ids=["whole", "adapters"])
def test_a_marked_reference_is_the_policy_at_the_mark_also_after_loading(
    lora: LoRAConfig, tmp_path: Path
) -> None:
    trainer = support.build(lora, keep_reference=True)
    inputs = support.batch(0, EVERYTHING).inputs

    def logprobs(asked: FSDPTrainer, *, reference: bool) -> Tensor:
        return asked.outputs(inputs, support.LOGPROBS, reference=reference).logprobs_BT

    initial = logprobs(trainer, reference=True)
    support.train(trainer, [0, 1, 2])
    marked = logprobs(trainer, reference=False)
    trainer.mark_reference()
    support.train(trainer, [3])
    trainer.save(tmp_path / "checkpoint")
    current = logprobs(trainer, reference=False)
    other = support.build(lora, keep_reference=True)
    other.load(tmp_path / "checkpoint")
    for held in (trainer, other):
        assert torch.equal(logprobs(held, reference=True), marked)
        assert torch.equal(logprobs(held, reference=False), current)
    assert (marked - initial).abs().max() > 1e-4
    assert (current - marked).abs().max() > 1e-4


@pytest.mark.parametrize("lora", [support.NO_LORA, support.LORA])
def test_a_module_that_acts_has_the_weights_of_the_trainer_by_name(lora: LoRAConfig) -> None:
    trainer = support.build(lora)
    acting = FSDPBackend(FSDPConfig()).acting_module(support.TinyLlama(None), lora, seed=3)
    sent = support.weights(trainer)
    assert dict(acting.named_parameters()).keys() == sent.keys()
    assert all(torch.equal(value, sent[name]) for name, value in acting.named_parameters())
