"""Conformance checks of training backends, on a model of eight tokens. Axes: B rows, T tokens."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from rlinf_core.api import (
    LoRAConfig,
    LossTerms,
    OptimizerConfig,
    PolicyOutputs,
    TrainBatch,
    Trainer,
    TrainerContext,
    Want,
)
from rlinf_core.testing.fakes import EXPORTED, TinyTextModel, text_samples
from rlinf_core.testing.subject import CheckSkipped, Subject, expect

OPTIMIZER = OptimizerConfig(lr=1e-2)
LOGPROBS: frozenset[Want] = frozenset({"logprobs"})
ALL = (0, 1, 2, 3)


def check_backends_learn(subject: Subject) -> None:
    """A few steps make rewarded responses more probable; the version counts the steps."""
    with _trainer(subject) as trainer:
        before = _likelihood(trainer)
        for step in range(5):
            expect(trainer.version == step, f"after {step} steps `version` is {trainer.version}")
            stats = _train(trainer, [ALL])
            expect(stats > 0, "the gradient norm of a step is 0")
        after = _likelihood(trainer)
        expect(after > before + 0.1, f"five steps moved the log-likelihood from {before:.3f} to {after:.3f}")


def check_backends_micro_batches(subject: Subject) -> None:
    """Any split into micro-batches, empty ones included, gives the same weights."""
    splits: tuple[list[Sequence[int]], ...] = ([ALL], [(0,), (1, 2, 3)], [(3, 1), (), (0, 2)])
    found = []
    for split in splits:
        with _trainer(subject) as trainer:
            _train(trainer, split)
            found.append(_weights(trainer))
    for split, weights in zip(splits[1:], found[1:], strict=True):
        for name, value in found[0].items():
            gap = float((value - weights[name]).abs().max())
            expect(
                gap < 1e-5,
                f"micro-batches {split} change weight {name} by {gap:.2e}; sum, divide once in step",
            )


def check_backends_empty_batch(subject: Subject) -> None:
    """A micro-batch whose mask is all False adds no gradient and no metric."""
    with _trainer(subject) as trainer:
        batch = _batch(ALL)
        batch.mask_BT = torch.zeros_like(batch.mask_BT)
        metrics = trainer.accumulate(batch, _loss)
        expect(not any(count for _, count in metrics.values()), f"an empty micro-batch has metrics {metrics}")
        norm = trainer.step(1.0).grad_norm
        expect(norm == 0, f"an empty micro-batch has a gradient of norm {norm}")


def check_backends_denominator(subject: Subject) -> None:
    """The gradient is divided by the denominator once, and forgotten after the step."""
    with _trainer(subject) as trainer:
        trainer.reset_optimizer(OptimizerConfig(lr=0.0), 10)
        norms = [_train(trainer, [ALL], denominator=number) for number in (1.0, 4.0, 1.0)]
        ratio = norms[0] / norms[1]
        expect(abs(ratio - 4.0) < 1e-3, f"a fourfold denominator divides the gradient norm by {ratio:.4f}")
        expect(abs(norms[2] / norms[0] - 1.0) < 1e-5, "the gradient of a step is still there in the next one")


def check_backends_checkpoint(subject: Subject) -> None:
    """After `load`, training goes on bit for bit as it did after `save`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trainer"
        with _trainer(subject) as trainer:
            _train(trainer, [ALL])
            _train(trainer, [ALL])
            trainer.save(path)
            _train(trainer, [ALL])
            expected = _weights(trainer)
        with _trainer(subject, seed=5) as trainer:
            trainer.load(path)
            expect(trainer.version == 2, f"a trainer saved at version 2 loads as version {trainer.version}")
            _train(trainer, [ALL])
            for name, value in _weights(trainer).items():
                expect(
                    torch.equal(value, expected[name]), f"weight {name} differs after save, load and one step"
                )


def check_backends_snapshot(subject: Subject) -> None:
    """A snapshot that is written later holds what was there when it was taken, whatever was trained since."""
    with tempfile.TemporaryDirectory() as folder:
        with _trainer(subject) as trainer:
            _train(trainer, [ALL])
            snapshot = trainer.snapshot(apart=True)
            if snapshot is None:
                raise CheckSkipped("the backend has no snapshots")
            expected = _weights(trainer)
            _train(trainer, [ALL])
            files = snapshot.write(Path(folder))
        there = {path for path in Path(folder).rglob("*") if path.is_file()}
        expect(
            set(files) == there, f"a snapshot named {sorted(files)} as its files, and wrote {sorted(there)}"
        )
        written = sum(path.stat().st_size for path in files)
        expect(written >= snapshot.size, f"a snapshot of {snapshot.size} bytes wrote {written}")
        with _trainer(subject, seed=5) as trainer:
            trainer.load(Path(folder))
            expect(trainer.version == 1, f"a snapshot of version 1 loads as version {trainer.version}")
            for name, value in _weights(trainer).items():
                expect(torch.equal(value, expected[name]), f"weight {name} differs after a snapshot")


def check_backends_any_order(subject: Subject) -> None:
    """Of a backend with `any_order`: parts of a step give the same bits in any order, and the gradient that
    they have without being parts."""
    found = []
    for order in ([(0,), (1, 2), (3,)], [(3,), (0,), (1, 2)], [(1, 2), (3,), (0,)]):
        with _trainer(subject) as trainer:
            if not trainer.any_order:
                raise CheckSkipped("the backend adds up gradients in one order only")
            for part in order:
                trainer.accumulate(_batch(part), _loss)
                trainer.close_part()
            trainer.step(13.0)
            found.append(_weights(trainer))
    with _trainer(subject) as trainer:
        _train(trainer, [ALL])
        expected = _weights(trainer)
    for name, value in found[0].items():
        same = all(torch.equal(weights[name], value) for weights in found)
        expect(same, f"the order of parts changes weight {name}")
        gap = float((value - expected[name]).abs().max())
        expect(gap < 1e-5, f"parts change weight {name} by {gap:.2e}")


def check_backends_not_finite(subject: Subject) -> None:
    """A gradient that is not finite is not applied, and the step says so."""
    with _trainer(subject) as trainer:
        before = _weights(trainer)
        batch = _batch(ALL)
        batch.advantages_BT = torch.full_like(batch.advantages_BT, torch.inf)
        trainer.accumulate(batch, _loss)
        expect(trainer.step(1.0).skipped, "a gradient that is not finite did not set `skipped`")
        for name, value in _weights(trainer).items():
            expect(torch.equal(value, before[name]), f"a gradient that is not finite changed weight {name}")


def check_backends_weights(subject: Subject) -> None:
    """`weights` gives every parameter, whole, under the module's names, the last bucket marked."""
    shapes = {name: value.shape for name, value in _model(subject).module(0).named_parameters()}
    with _trainer(subject) as trainer:
        _train(trainer, [ALL])
        buckets = list(trainer.weights())
        expect(
            [bucket.last for bucket in buckets].count(True) == 1 and buckets[-1].last, "mark the last bucket"
        )
        versions = {bucket.version for bucket in buckets}
        expect(versions == {1}, f"weights after one step carry the versions {versions}")
        given = {name: value.shape for bucket in buckets for name, value in bucket.tensors.items()}
        expect(given == shapes, f"weights() gives {given}; the module's parameters are {shapes}")


def check_backends_reference(subject: Subject) -> None:
    """Reference outputs stay those of the initial policy."""
    if not subject.spec.provides.reference:  # type: ignore[attr-defined]
        raise CheckSkipped("the backend provides no reference")
    with _trainer(subject, keep_reference=True) as trainer:
        inputs = dict(_batch(ALL).inputs)
        before = trainer.outputs(inputs, LOGPROBS).logprobs_BT
        _train(trainer, [ALL])
        after = trainer.outputs(inputs, LOGPROBS, reference=True).logprobs_BT
        expect(torch.allclose(before, after, atol=1e-6), "reference outputs change with training")
        expect(
            not torch.allclose(before, trainer.outputs(inputs, LOGPROBS).logprobs_BT),
            "training changed nothing",
        )


def check_backends_export(subject: Subject) -> None:
    """`export` writes the current weights by the model's `export`."""
    with tempfile.TemporaryDirectory() as folder, _trainer(subject) as trainer:
        _train(trainer, [ALL])
        trainer.export(Path(folder) / "export")
        written = torch.load(Path(folder) / "export" / EXPORTED, weights_only=True)
        for name, value in _weights(trainer).items():
            expect(
                name in written and torch.equal(written[name], value),
                f"the exported weight {name} is not the trainer's; give Model.export full current ones",
            )


def check_backends_offload(subject: Subject) -> None:
    """Training goes on bit for bit after the device was left, also between micro-batches."""
    if not subject.spec.provides.offload:  # type: ignore[attr-defined]
        raise CheckSkipped("the backend does not offload")
    found = []
    for leaves in (False, True):
        with _trainer(subject, keep_reference=subject.spec.provides.reference) as trainer:  # type: ignore[attr-defined]
            for _ in range(2):
                for rows in ((0, 1), (2, 3)):
                    trainer.accumulate(_batch(rows), _loss)
                    if leaves:
                        trainer.offload()
                        trainer.onload()
                trainer.step(13.0)
                if leaves:
                    trainer.offload()
                    trainer.offload()
                    trainer.onload()
                    trainer.onload()
            found.append(_weights(trainer))
    for name, value in found[0].items():
        expect(torch.equal(value, found[1][name]), f"offload and onload changed weight {name}")


def check_backends_all_sum(subject: Subject) -> None:
    """In a world of one, `all_sum` gives the values."""
    with _trainer(subject) as trainer:
        expect(list(trainer.all_sum([1.5, -2.0])) == [1.5, -2.0], "all_sum of one rank changes the values")


@contextmanager
def _trainer(subject: Subject, seed: int = 0, keep_reference: bool = False) -> Iterator[Trainer]:
    context = TrainerContext(seed=seed, total_steps=10)
    trainer: Trainer = subject.build().build(
        _model(subject), OPTIMIZER, LoRAConfig(), context, keep_reference=keep_reference
    )
    try:
        yield trainer
    finally:
        trainer.close()


def _model(subject: Subject) -> TinyTextModel:
    """The kit's own, or the one that the backend names."""
    named: str = subject.spec.check_model  # type: ignore[attr-defined]
    if not named:
        return TinyTextModel(None)
    module, _, attribute = named.partition(":")
    model: TinyTextModel = getattr(importlib.import_module(module), attribute)(None)
    return model


def _loss(outputs: PolicyOutputs, batch: TrainBatch) -> LossTerms:
    loss_BT = -torch.where(batch.mask_BT, outputs.logprobs_BT * batch.advantages_BT, 0.0)
    return LossTerms(loss_BT.sum(), {"loss": (loss_BT.detach().sum(), batch.mask_BT.sum())})


def _batch(rows: Sequence[int]) -> TrainBatch:
    samples = text_samples()
    width = max(len(sample.mask) for sample in samples)
    lengths_B = torch.tensor([len(samples[i].mask) for i in rows], dtype=torch.int64)
    mask_BT = torch.arange(width)[None] < lengths_B[:, None]
    return TrainBatch(
        inputs=TinyTextModel(None).collate([samples[i] for i in rows], width),
        mask_BT=mask_BT,
        advantages_BT=mask_BT.float(),
        rollout_logprobs_BT=torch.zeros_like(mask_BT, dtype=torch.float32),
    )


def _train(trainer: Trainer, split: Sequence[Sequence[int]], denominator: float = 13.0) -> float:
    for rows in split:
        trainer.accumulate(_batch(rows), _loss)
    return trainer.step(denominator).grad_norm


def _likelihood(trainer: Trainer) -> float:
    batch = _batch(ALL)
    outputs = trainer.outputs(batch.inputs, LOGPROBS)
    return float(outputs.logprobs_BT[batch.mask_BT].mean())


def _weights(trainer: Trainer) -> dict[str, Tensor]:
    return {n: v.detach().clone() for bucket in trainer.weights() for n, v in bucket.tensors.items()}
