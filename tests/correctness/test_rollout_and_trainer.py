"""What rollout and trainer have to agree on, in real runs of tiny models (15, 16, 20)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM

from rlinf_core.roles.step_update import StepUpdate
from rlinf_core.roles.update import Updater
from rlinf_core.types import Experience, Sample, Sampling

LOGPROBS = frozenset({"logprobs"})
STILL = ("optimizer.lr=0", "train.skip_gradient_free=false")
SEVERAL = ("train.mini_batches=2", "train.update_epochs=2")


# 15


@pytest.mark.parametrize("old", ["auto", "rollout"])
def test_without_learning_rate_the_ratio_stays_one_over_steps_and_updates(
    tiny_run: Callable[..., Any], old: str
) -> None:
    run = tiny_run("algo=grpo", "algo.group_size=4", *STILL, *SEVERAL, f"train.old_logprobs={old}")
    before = run.weights()
    for step in range(3):
        metrics = run.step(step).metrics
        assert metrics["train/ratio"] == pytest.approx(1.0, abs=1e-5)
        assert metrics["train/approx_kl"] < 1e-9
        assert metrics["train/clip_fraction"] == 0.0
        assert metrics["train/logprob_mismatch_max"] < 1e-4
        assert metrics["train/grad_norm"] > 0.0
    assert run.worker("actor").trainer.version == 3 * 4
    assert all(torch.equal(before[name], now) for name, now in run.weights().items())


def test_the_mismatch_is_what_rollout_and_trainer_differ_by_before_any_clip_or_cap(
    updater: Callable[..., Updater], text_row: Callable[..., Sample]
) -> None:
    """The rollout says 1 nat less at every second token: far outside of clips and caps."""
    options = ("algo.group_size=2", "algo.importance_cap=1.01", "algo.clip_ratio=0.01")
    made = updater("algo=grpo", *options, "train.old_logprobs=rollout", "optimizer.lr=0")
    rows = [text_row([1, 5], [7, 8, 9, 2], reward=1.0), text_row([1, 5], [9, 9, 4, 2], reward=0.0)]
    said_BT = made.estimate(rows, LOGPROBS).logprobs_BT.numpy()
    for row, logprobs_T in zip(rows, said_BT, strict=True):
        row.logprobs = (logprobs_T - [0, 1, 0, 1]).astype(np.float32)
    update = StepUpdate(made, 0)
    update.add(rows)
    report = update.finish()
    means = {name: total / count for name, (total, count) in report.sums.items()}
    assert means["logprob_mismatch"] == pytest.approx(0.5, abs=1e-5)
    assert means["mismatch_kl"] == pytest.approx((np.e - 2) / 2, abs=1e-5)
    assert report.peaks["logprob_mismatch_max"] == pytest.approx(1.0, abs=1e-5)
    assert means["ratio"] == pytest.approx((1 + np.e) / 2, abs=1e-5)


# 16


TRANSFORM = ("sampling.temperature=0.7", "sampling.top_p=0.9", "sampling.top_k=20")


def test_both_sides_apply_temperature_top_p_and_top_k_while_the_policy_learns(
    tiny_run: Callable[..., Any],
) -> None:
    run = tiny_run("model.preset=tiny-llama", "algo=grpo", "algo.group_size=4", *TRANSFORM)
    for step in range(3):
        module, model = run.worker("actor").trainer.policy.inner, run.worker("actor").updater.model
        version = run.worker("actor").trainer.version
        with torch.no_grad():
            start = {name: p.clone() for name, p in module.named_parameters()}
        result = run.step(step)
        assert result.metrics["train/logprob_mismatch_max"] < 1e-4
        assert {row.weight_version for row in result.rows} == {version} == {step}
        assert _plain_gap(model, start, result.rows) > 0.3, "without the transform they would differ"


def _plain_gap(model: HFLM, weights: dict[str, torch.Tensor], rows: Sequence[Experience]) -> float:
    """The mean difference to log-probabilities that know nothing of the transform."""
    module = model.module(0)
    module.load_state_dict(weights, strict=False)
    with torch.no_grad():
        plain_BT = model.policy_outputs(module, model.collate(rows), LOGPROBS, Sampling()).logprobs_BT
    gaps = [np.abs(plain_BT[i, : len(row.mask)].numpy() - row.logprobs) for i, row in enumerate(rows)]
    return float(np.concatenate(gaps).mean())


# 20


@pytest.mark.parametrize("lora", ["lora.rank=0", "lora.rank=2"])
@pytest.mark.parametrize("words", [("algo=grpo", "algo.group_size=4"), ("algo=ppo", "algo.group_size=4")])
def test_packed_and_padded_rows_train_as_each_row_alone(
    updater: Callable[..., Updater], text_row: Callable[..., Sample], words: tuple[str, ...], lora: str
) -> None:
    """Prompts of 2 to 30 tokens share a batch, so that a position counted from the wrong place shows."""
    random = np.random.default_rng(0)
    prompts = [random.integers(3, 21, n).tolist() for n in (30, 2)]
    gradients = []
    for layout in (
        ("model.packing=always",),
        ("model.packing=never",),
        ("train.micro_batch_tokens=1",),
    ):
        random = np.random.default_rng(1)
        rows = [
            text_row(
                prompts[i // 4], random.integers(3, 21, n).tolist(), reward=random.random(), group=i // 4
            )
            for i, n in enumerate((5, 1, 3, 8, 2, 6, 4, 1))
        ]
        made = updater("algo.group_size=4", *words, lora, *layout)
        _shake_adapters(made.trainer)
        _, _, columns = made.judge(rows, several=False)
        objective = made.objective(0)
        assert objective is not None
        report = StepUpdate(made, 0).report
        made.accumulate(rows, range(8), columns, *objective, report)
        named = made.trainer.policy.named()  # type: ignore[attr-defined]
        gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
    alone = gradients[-1]
    for found in gradients[:-1]:
        assert found.keys() == alone.keys()
        for name, gradient in alone.items():
            gap = float((found[name] - gradient).norm() / gradient.norm().clamp_min(1e-3))
            assert gap < 1e-4, name


def _shake_adapters(trainer: Any) -> None:
    """Adapters start as zeros, which would hide what they do."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in trainer.policy.named():
            if "lora_B" in name:
                parameter.normal_(std=0.1)


def test_positions_of_a_left_padded_prompt_are_counted_from_its_first_token() -> None:
    """The decoder of any architecture pads prompts on the left. A model with learned positions, unlike one
    with rotary ones, shows where it counts from."""
    from rlinf_model_hf_lm.generic_decoder import GenericDecoder
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=96, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3)
    module = GPT2LMHeadModel(config).eval()
    prompts = [np.array([1, 20, 21]), np.arange(3, 60)]
    decoder = GenericDecoder(module)
    found = [decoder.prefill([0, 1], prompts), decoder.step([0, 1], torch.tensor([33, 44]))]
    for row, (prompt, token) in enumerate(zip(prompts, (33, 44), strict=True)):
        ids = torch.tensor([[*prompt.tolist(), token]])
        with torch.no_grad():
            alone_LV = module(input_ids=ids).logits[0, -2:]
        torch.testing.assert_close(torch.stack([part[row] for part in found]), alone_LV, rtol=1e-4, atol=1e-4)


def test_positions_in_training_are_counted_from_the_first_token_of_each_prompt(
    text_row: Callable[..., Sample],
) -> None:
    """As above, for rows of unequal prompts in one batch of the trainer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=96, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3)
    module = GPT2LMHeadModel(config).eval()
    model = HFLM(HFLMConfig(preset="char-llama"))
    rows = [text_row([1, 20, 21], [33, 34, 35]), text_row(list(range(3, 60)), [7])]
    with torch.no_grad():
        found_BT = model.policy_outputs(module, model.collate(rows), LOGPROBS).logprobs_BT
        for row, logprobs_T in zip(rows, found_BT, strict=True):
            ids = torch.tensor([[*row.prompt.token_ids.tolist(), *row.response_ids.tolist()]])
            logits_TV = module(input_ids=ids).logits[0, len(row.prompt.token_ids) - 1 : -1].log_softmax(-1)
            alone_T = logits_TV.gather(1, torch.from_numpy(row.response_ids)[:, None])[:, 0]
            torch.testing.assert_close(logprobs_T[: len(alone_T)], alone_T, rtol=1e-4, atol=1e-4)
