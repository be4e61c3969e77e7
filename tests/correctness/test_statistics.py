"""Statistics of a whole step, a KL on every backend, selected groups, and clips of values (3, 7, 9, 13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_backend_fsdp.backend import FSDPBackend
from rlinf_backend_fsdp.config import FSDPConfig
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM

from rlinf_core.api import LoRAConfig, OptimizerConfig, TrainBackend, TrainerContext
from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import SelectionError
from rlinf_core.plugins import NoConfig
from rlinf_core.roles.estimates import LOGPROBS
from rlinf_core.roles.scoring import scored_batch
from rlinf_core.roles.setup import build_algorithm
from rlinf_core.roles.step_update import StepUpdate
from rlinf_core.roles.update import Updater
from rlinf_core.testing.simple_backend import SimpleBackend
from rlinf_core.types import Sample

REWARDS = [1.0, 0.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0]
LENGTHS = [5, 3, 4, 2, 5, 5, 1, 3]


def eight_rows(text_row: Callable[..., Sample]) -> list[Sample]:
    """The two groups of four that the reference numbers are of."""
    return [
        text_row([1, 5], [7 + i] * n, reward=reward, group=i // 4, replica=i % 4)
        for i, (n, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True))
    ]


# 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("algo=reinforce_pp", "algo.kl_coef=0"),
            [0.433766, -2.602599, 0.433766, -1.084416, *[0.433766] * 4],
        ),
        (
            ("algo=reinforce_pp", "algo.baseline=group", "algo.group_size=4", "algo.kl_coef=0"),
            [1.105075, -2.240017, 1.105075, -0.567471, *[-0.149334] * 4],
        ),
        (("algo=grpo", "algo.group_size=4"), [0.783348, -1.305580, 0.783348, -0.261116, 0, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_has_the_advantages_of_the_whole_step_and_trains_a_part_of_it(
    updater: Callable[..., Updater],
    text_row: Callable[..., Sample],
    words: tuple[str, ...],
    expected: list[float],
    ranks: int,
) -> None:
    rows = eight_rows(text_row)
    shared: list[int] = []
    tokens: list[int] = []
    for rank in range(ranks):
        made = updater(*words, rank=rank, ranks=ranks)
        _, _, columns = made.judge(rows, several=False)
        expected_BT = torch.tensor(expected)[:, None] * columns.mask_BT
        torch.testing.assert_close(columns.advantages_BT, expected_BT, atol=1e-6, rtol=0)
        update = StepUpdate(made, 0)
        update.add(rows)
        facts = update.report.facts | update._seen.facts("advantage")
        flat = columns.advantages_BT[columns.mask_BT]
        assert facts["advantage_mean"] == pytest.approx(float(flat.mean()), abs=1e-6)
        assert facts["advantage_std"] == pytest.approx(float(flat.std(correction=0)), rel=1e-5)
        assert (facts["advantage_min"], facts["advantage_max"]) == (float(flat.min()), float(flat.max()))
        own = [i for part in made.shares(rows, range(8)) for i in part]
        shared += own
        tokens.append(sum(LENGTHS[i] for i in own))
    assert sorted(shared) == list(range(8))
    assert sum(tokens) == 28


# 7


def moved(backend: TrainBackend, model: HFLM) -> Any:
    """A trainer whose policy has left its reference."""
    context = TrainerContext(seed=3, total_steps=10)
    trainer = backend.build(model, OptimizerConfig(lr=0.0), LoRAConfig(), context, keep_reference=True)
    generator = torch.Generator().manual_seed(0)
    for bucket in trainer.weights():
        for name in sorted(bucket.tensors):
            with torch.no_grad():
                tensor = bucket.tensors[name]
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return trainer


def said_by(module: Any, rows: Sequence[Sample]) -> list[np.ndarray]:
    """Log-probabilities row by row from full logits, in float64."""
    found = []
    for row in rows:
        ids = torch.tensor([[*row.prompt.token_ids.tolist(), *row.response_ids.tolist()]])
        with torch.no_grad():
            logits = module(input_ids=ids).logits[0, len(row.prompt.token_ids) - 1 : -1].double()
        found.append(logits.log_softmax(-1).gather(1, torch.tensor(row.response_ids)[:, None])[:, 0].numpy())
    return found


KLS: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # of log policy - log reference
    "k1": lambda gap: gap,
    "k2": lambda gap: gap**2 / 2,
    "k3": lambda gap: np.exp(-gap) - 1 + gap,
}


@pytest.mark.parametrize(
    ("words", "estimator"),
    [
        (("algo=grpo", "algo.group_size=4", "algo.kl_coef=0.1"), "k3"),
        (("algo=grpo", "algo.group_size=4", "algo.kl_coef=0.1", "algo.kl_estimator=k2"), "k2"),
        (("algo=ppo", "algo.critic=own", "algo.kl_coef=0.1"), "k1"),
        (("algo=reinforce_pp", "algo.kl_coef=0.1"), "k1"),
        (("algo=reinforce_pp", "algo.kl_coef=0.1", "algo.kl_reward_estimator=k3"), "k3"),
    ],
)
def test_every_backend_gives_the_kl_that_full_logits_give_with_its_sign(
    settings: Callable[..., RunConfig],
    text_row: Callable[..., Sample],
    words: tuple[str, ...],
    estimator: str,
) -> None:
    config = settings(*words)
    for backend in (FSDPBackend(FSDPConfig()), SimpleBackend(NoConfig())):
        model = HFLM(HFLMConfig(preset="char-llama"))
        trainer = moved(backend, model)
        made = Updater(trainer, build_algorithm(config), model, config, 0, 1)
        rows = eight_rows(text_row)
        module = trainer.policy.inner if isinstance(backend, FSDPBackend) else trainer.module
        policy, reference = said_by(module, rows), said_by(model.module(3), rows)
        referred_BT = made.estimate(rows, LOGPROBS, reference=True).logprobs_BT.numpy()
        for row, logprobs_T, own_T in zip(rows, referred_BT, policy, strict=True):
            row.reference_logprobs = logprobs_T[: len(row.mask)]
            row.logprobs = own_T.astype(np.float32)
            row.values = np.zeros(len(row.mask), dtype=np.float32)
        update = StepUpdate(made, 0)
        update.add(rows)
        total, count = update.finish().sums["kl"]
        expected = np.concatenate([KLS[estimator](p - r) for p, r in zip(policy, reference, strict=True)])
        assert abs(expected.mean()) > 1e-3
        assert total / count == pytest.approx(expected.mean(), rel=1e-4)


@pytest.mark.parametrize(("gap", "sign"), [(0.5, -1), (-0.5, 1)])
def test_a_policy_that_says_more_than_the_reference_is_charged_at_each_token(
    settings: Callable[..., RunConfig], text_row: Callable[..., Sample], gap: float, sign: int
) -> None:
    """Two tokens, gamma 1: the first's return holds both charges, the second's one. Values are 0."""
    config = settings(
        "algo=ppo", "algo.critic=own", "algo.kl_coef=0.1", "algo.whiten=false", "algo.gae_lambda=1"
    )
    row = text_row([1, 5], [7, 8], reward=1.0, values=np.zeros(2, np.float32))
    row.logprobs = np.full(2, -1.0, np.float32)
    row.reference_logprobs = np.full(2, -1.0 - gap, np.float32)
    made = build_algorithm(config).advantages(scored_batch([row]))
    assert made.advantages_BT[0].tolist() == pytest.approx([1 + sign * 0.1, 1 + sign * 0.05])


# 9


DAPO = ("algo=dapo", "algo.group_size=4")


def test_groups_of_equal_raw_rewards_are_replaced_until_the_step_is_full(
    tiny_run: Callable[..., Any],
) -> None:
    """Half of the prompts give equal rewards; the punishment of long responses would tell them apart."""
    run = tiny_run(*DAPO, "algo.overlong_buffer=8", "algo.max_rounds=20", reward="some")
    groups: set[int] = set()
    for step in range(2):
        position = run.source.prompts.position
        result = run.step(step)
        metrics = result.metrics
        assert metrics["train/trained_samples"] == 4 * 4
        assert metrics["train/rounds"] > 1
        assert len(result.rows) == 4 * metrics["train/drawn_groups"] > 16
        assert run.source.prompts.position - position == metrics["train/drawn_groups"]
        by_group: dict[int, list[Sample]] = {}
        for row in result.rows:
            by_group.setdefault(row.group, []).append(row)
        assert not groups & by_group.keys()
        groups |= by_group.keys()
        uneven = [rows for rows in by_group.values() if len({row.reward for row in rows}) > 1]
        assert metrics["train/kept_share"] == len(uneven) / len(by_group) < 1
        prompts = [rows[0].prompt.index for rows in by_group.values()]
        assert len(set(prompts)) == len(prompts)
        punished_apart = [rows for rows in by_group.values() if len({row.length for row in rows}) > 1]
        assert len(punished_apart) > len(uneven), "lengths differ where rewards do not"


def test_a_step_that_cannot_be_filled_ends_with_an_error_that_counts(tiny_run: Callable[..., Any]) -> None:
    run = tiny_run(*DAPO, "algo.max_rounds=3", reward="one")
    with pytest.raises(SelectionError, match=r"'dapo' kept 0 of 12 groups \(12 prompts in 3 rounds\)"):
        run.step(0)


# 13


def test_the_clip_fraction_of_values_counts_where_the_clip_decides_the_loss_of_the_value_as_it_is(
    updater: Callable[..., Updater], text_row: Callable[..., Sample]
) -> None:
    """The old values lie up to .2 beside those that the head says now, and the clip is .1. The clipped value
    itself never lies outside of its bounds: a fraction counted from it would be 0."""
    made = updater("algo=ppo", "algo.critic=head", "algo.value_clip=0.1", "train.old_logprobs=rollout")
    made.critic, made.head = True, False  # trains values alone, beside those that the rows bring
    rows = eight_rows(text_row)
    now_BT = made.estimate(rows, frozenset({"values"})).values_BT.numpy()
    random = np.random.default_rng(0)
    for row, values_T in zip(rows, now_BT, strict=True):
        row.values = (values_T[: len(row.mask)] + random.uniform(-0.2, 0.2, len(row.mask))).astype(np.float32)
    batch, advantages, _ = made.judge(rows, several=True)
    assert advantages.returns_BT is not None
    assert batch.values_BT is not None
    mask_BT = batch.mask_BT.numpy()
    now, old, target = (
        now_BT[mask_BT],
        batch.values_BT.numpy()[mask_BT],
        advantages.returns_BT.numpy()[mask_BT],
    )
    held = np.clip(now, old - 0.1, old + 0.1)
    expected = int(((held - target) ** 2 > (now - target) ** 2).sum())
    assert 0 < expected < int((held != now).sum()) < 28
    update = StepUpdate(made, 0)
    update.add(rows)
    assert update.finish().sums["value_clip_fraction"] == (expected, 28)
