"""Trainer and rollout engine leave the device and come back as they were. On the CPU the tests say that host
memory is elsewhere, which empties and fills the same storages as on another device."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from rlinf_backend_fsdp.config import FSDPConfig, HFRolloutConfig
from rlinf_backend_fsdp.rollout import HFRollout
from rlinf_backend_fsdp.trainer import FSDPTrainer
from torch import Tensor

from rlinf_core.api import LoRAConfig, TrainerContext
from rlinf_core.errors import ConfigError
from rlinf_core.shelf import Shelf, storages
from rlinf_core.testing.fakes import TinyTextModel
from rlinf_core.types import Prompt, Request, Sampling

sys.path.insert(0, str(Path(__file__).parent))
import fsdp_ranks as support

EVERYTHING = list(range(support.ROWS))


def resident_mb() -> float:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def bytes_of(tensors: list[Tensor]) -> int:
    return sum(storage.nbytes() for storage in storages(tensors).values())


def everything(trainer: FSDPTrainer) -> list[Tensor]:
    gradients = trainer._leaves.gradients()
    return [
        *trainer.policy.parameters(),
        *trainer.optimizer.tensors(),
        *trainer.reference.tensors(),
        *gradients,
    ]


def elsewhere(trainer: FSDPTrainer) -> FSDPTrainer:
    trainer.host_is_elsewhere = True
    return trainer


def what_the_shelf_frees() -> float:
    """MiB. In a process of its own: where much was allocated before, a freed storage may stay with it for
    what comes next."""
    moved, zeros = torch.ones(16_000_000), torch.ones(16_000_000).zero_()
    shelf = Shelf()
    before = resident_mb()
    shelf.put([moved], [zeros])
    return before - resident_mb()


def test_memory_is_really_freed() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        assert processes.submit(what_the_shelf_frees).result(60) > 50  # 128 MB go, and a copy of 64 MB comes


def test_views_of_a_storage_live_through_its_absence() -> None:
    flat = torch.arange(1000, dtype=torch.float32)
    part, zeros = flat[5:8], torch.zeros(1000)
    shelf = Shelf()
    shelf.put([part], [zeros])
    assert (flat.untyped_storage().nbytes(), zeros.untyped_storage().nbytes()) == (0, 0)
    shelf.put([part], [zeros])
    shelf.fetch()
    shelf.fetch()
    assert part.tolist() == [5.0, 6.0, 7.0]
    assert (float(flat[-1]), float(zeros.abs().sum())) == (999.0, 0.0)


@pytest.mark.parametrize("lora", [support.NO_LORA, support.LORA], ids=["whole", "lora"])
def test_training_goes_on_bit_for_bit_after_everything_was_away(lora: LoRAConfig) -> None:
    plain = support.build(lora, keep_reference=True)
    moved = elsewhere(support.build(lora, keep_reference=True))
    for step in range(4):
        for rows in (EVERYTHING[:3], EVERYTHING[3:]):
            for trainer in (plain, moved):
                trainer.accumulate(support.batch(step, rows), support.loss)
            moved.offload()
            assert bytes_of(everything(moved)) == 0
            moved.onload()
        stats = [trainer.step(42.0) for trainer in (plain, moved)]
        assert stats[0] == stats[1]
        moved.offload()
        assert bytes_of(everything(moved)) == 0
    inputs = support.batch(9, EVERYTHING).inputs
    for reference in (False, True):
        ours, theirs = (
            trainer.outputs(inputs, support.LOGPROBS, reference=reference) for trainer in (plain, moved)
        )
        assert torch.equal(ours.logprobs_BT, theirs.logprobs_BT)
    for one, other in zip(everything(plain), everything(moved), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "use",
    [
        lambda trainer, path: list(trainer.weights()),
        lambda trainer, path: trainer.outputs(support.batch(0, EVERYTHING).inputs, support.LOGPROBS),
        lambda trainer, path: trainer.save(path / "saved"),
        lambda trainer, path: trainer.export(path / "exported"),
        lambda trainer, path: trainer.mark_reference(),
        lambda trainer, path: trainer.reset_optimizer(support.OPTIMIZER, 5),
    ],
)
def test_whoever_uses_a_trainer_that_is_away_brings_it_back(
    use: Callable[[FSDPTrainer, Path], object], tmp_path: Path
) -> None:
    trainer = elsewhere(support.build(keep_reference=True))
    expected = {name: tensor.clone() for name, tensor in trainer._leaves.parameters().items()}
    trainer.offload()
    use(trainer, tmp_path)
    assert all(torch.equal(expected[name], now) for name, now in support.weights(trainer).items())


def test_only_what_the_settings_name_leaves() -> None:
    trainer = elsewhere(support.build(offload=("optimizer",)))
    sizes = bytes_of(list(trainer.policy.parameters())), bytes_of(trainer.optimizer.tensors())
    trainer.offload()
    assert bytes_of(list(trainer.policy.parameters())) == sizes[0]
    assert bytes_of(trainer.optimizer.tensors()) == 0
    trainer.onload()
    assert bytes_of(trainer.optimizer.tensors()) == sizes[1]


def test_on_the_cpu_only_gradients_that_hold_nothing_are_freed() -> None:
    trainer = support.build()
    trainer.accumulate(support.batch(0, EVERYTHING), support.loss)
    trainer.offload()
    assert bytes_of(trainer._leaves.gradients()) > 0  # a step still needs them
    trainer.step(42.0)
    trainer.offload()
    assert bytes_of(trainer._leaves.gradients()) == 0
    assert bytes_of([*trainer.policy.parameters(), *trainer.optimizer.tensors()]) > 0


def _engine(config: HFRolloutConfig) -> HFRollout:
    return HFRollout(config, TinyTextModel(None), support.NO_LORA)


def _responses(engine: HFRollout) -> list[list[int]]:
    prompt = Prompt(index=0, token_ids=torch.tensor([1, 4, 5]).numpy(), text="")
    requests = [Request(prompt=prompt, group=0, replica=i, seed=i) for i in range(6)]
    made = engine.generate(iter([requests]), Sampling(max_new_tokens=8))
    return [s.response_ids.tolist() for s in sorted((s for c in made for s in c), key=lambda s: s.replica)]


def test_weights_that_trainer_and_rollout_share_stay_while_both_live() -> None:
    context = TrainerContext(seed=3, total_steps=10)
    model = TinyTextModel(None)
    trainer = elsewhere(FSDPTrainer.build(FSDPConfig(), model, support.OPTIMIZER, support.NO_LORA, context))
    engine = _engine(HFRolloutConfig())
    engine.host_is_elsewhere = True
    engine.load_weights(trainer.weights())
    expected = _responses(engine)
    trainer.offload()
    assert bytes_of(trainer.optimizer.tensors()) == 0
    assert _responses(engine) == expected
    engine.offload()
    assert bytes_of(list(trainer.policy.parameters())) > 0
    trainer.onload()
    del engine
    gc.collect()
    trainer.offload()
    assert bytes_of(list(trainer.policy.parameters())) == 0


def test_a_rollout_engine_with_weights_of_its_own_moves_them_and_frees_its_cache() -> None:
    trainer = FSDPTrainer.build(
        FSDPConfig(), TinyTextModel(None), support.OPTIMIZER, support.NO_LORA, TrainerContext(seed=3)
    )
    buckets = list(trainer.weights())
    for bucket in buckets:
        bucket.tensors = {name: tensor.detach().clone() for name, tensor in bucket.tensors.items()}
    engine = _engine(HFRolloutConfig())
    engine.host_is_elsewhere = True
    engine.load_weights(buckets)
    expected = _responses(engine)
    engine.offload()
    assert engine._decoder is None
    assert bytes_of(list(engine._parameters().values())) == 0
    assert _responses(engine) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FSDPConfig(offload=("cache",)), "backend.offload .fsdp.: 'cache' cannot be offloaded"),
        (lambda: HFRolloutConfig(offload=("optimizer",)), "rollout.offload .hf.: 'optimizer' cannot"),
    ],
)
def test_what_cannot_be_offloaded_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
