"""Conformance checks of algorithms. Axes: B rows, T decision steps."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch

from rlinf_core.api import Advantages, PolicyOutputs, ScoredBatch, TrainBatch
from rlinf_core.testing.subject import Subject, expect

if TYPE_CHECKING:
    from torch import Tensor

    from rlinf_core.api import Algorithm, AlgorithmNeeds, LossTerms

STEPS = 5
GROUPS = 4
OFF_MASK = 7.0  # what stands in padding; an algorithm that reads it gives itself away


def check_algorithms_needs(subject: Subject) -> None:
    """The class needs what its spec says."""
    stated, own = subject.spec.needs(subject.config), subject.build().needs  # type: ignore[attr-defined]
    expect(
        stated == own,
        f"the spec's needs(config) gives {stated}, the class's `needs` gives {own}; share one function",
    )


def check_algorithms_advantages(subject: Subject) -> None:
    """Advantages are finite float32 of the mask's shape, zero where the mask is False."""
    algorithm = subject.build()
    batch = scored_batch(algorithm.needs)
    made = algorithm.advantages(batch)
    for name, values_BT in (("advantages_BT", made.advantages_BT), ("returns_BT", made.returns_BT)):
        if values_BT is None:
            continue
        shape, expected = tuple(values_BT.shape), tuple(batch.mask_BT.shape)
        expect(shape == expected, f"{name} has shape {shape}; it must have the mask's shape {expected}")
        expect(values_BT.dtype == torch.float32, f"{name} is {values_BT.dtype}; make it float32")
        expect(torch.isfinite(values_BT[batch.mask_BT]).all(), f"{name} is not finite somewhere on the mask")
    narrower = made.mask_BT is None or not (made.mask_BT & ~batch.mask_BT).any()
    expect(narrower, "mask_BT of the advantages is True where the batch's is False; it may only be narrower")
    off = made.advantages_BT[~batch.mask_BT]
    expect(not off.any(), "advantages_BT is not zero where the mask is False; multiply it by the mask")


def check_algorithms_equal_rewards(subject: Subject) -> None:
    """Groups whose rewards are all equal give finite advantages."""
    algorithm = subject.build()
    batch = scored_batch(algorithm.needs)
    for reward in (0.0, 1.0, 0.3):
        equal = replace(batch, rewards_B=torch.full_like(batch.rewards_B, reward))
        made = algorithm.advantages(equal).advantages_BT
        expect(
            torch.isfinite(made).all(),
            f"rewards that are all {reward} give advantages that are not finite; guard the division",
        )


def check_algorithms_loss_is_a_sum(subject: Subject) -> None:
    """Losses and gradients of micro-batches add up to those of the whole batch."""
    algorithm = subject.build()
    batch, outputs = train_batch(algorithm)
    whole = _gradients(algorithm, outputs, batch, [slice(0, len(batch.mask_BT))])
    rounding = 1e-6 * max(1.0, _size(algorithm, outputs, batch))
    for sizes in ([1, 2], [3, 1, 1], [0]):
        parts = _gradients(algorithm, outputs, batch, _slices(sizes, len(batch.mask_BT)))
        for name, expected in whole.items():
            expect(
                torch.allclose(parts[name], expected, rtol=1e-5, atol=rounding),
                f"{name} of micro-batches of {sizes} and the rest differs from the whole batch by "
                f"{float((parts[name] - expected).abs().max()):.2e}; return a sum over decisions, never a "
                "mean, and use no statistic of the micro-batch in the loss",
            )


def check_algorithms_metrics_add_up(subject: Subject) -> None:
    """Metric sums and counts of micro-batches add up to those of the whole batch."""
    algorithm = subject.build()
    batch, outputs = train_batch(algorithm)
    whole = algorithm.loss(outputs, batch).metrics
    added = {name: [0.0, 0.0] for name in whole}
    for rows in _slices([1, 3], len(batch.mask_BT)):
        for name, pair in algorithm.loss(_cut(outputs, rows), _cut(batch, rows)).metrics.items():
            for i, number in enumerate(pair):
                added[name][i] += float(number)
    for name, pair in whole.items():
        expected = [float(number) for number in pair]
        gaps = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(added[name], expected, strict=True)]
        expect(
            max(gaps) < 1e-4,
            f"metric {name!r} is {added[name]} over micro-batches, {expected} whole; give (sum, count)",
        )


def check_algorithms_denominator(subject: Subject) -> None:
    """The denominator is positive and additive over rows."""
    algorithm = subject.build()
    mask_BT = scored_batch(algorithm.needs).mask_BT
    whole = algorithm.denominator(mask_BT)
    parts = algorithm.denominator(mask_BT[:2]) + algorithm.denominator(mask_BT[2:])
    expect(whole > 0, f"the denominator of a batch with trained decisions is {whole}; it must be positive")
    expect(abs(whole - parts) < 1e-6 * whole, f"the denominator is {whole} whole and {parts} in two parts")


def check_algorithms_gradient_free(subject: Subject) -> None:
    """Rows called gradient-free have exactly zero gradient."""
    algorithm = subject.build()
    scored = scored_batch(algorithm.needs)
    made = algorithm.advantages(scored)
    free_B = algorithm.gradient_free(scored, made)
    expect(
        free_B.shape == scored.rewards_B.shape and free_B.dtype == torch.bool,
        f"gradient_free returns {free_B.dtype} {tuple(free_B.shape)}; return bool [B]",
    )
    batch, outputs = train_batch(algorithm)
    gradients = _gradients(algorithm, outputs, batch, [slice(0, len(free_B))])
    for name, gradient_BT in gradients.items():
        if name != "the loss":
            expect(
                not gradient_BT[free_B].any(),
                f"gradient_free names rows with a gradient ({name}); consider every term of the loss",
            )


def check_algorithms_padding(subject: Subject) -> None:
    """The amount and the content of padding change nothing."""
    algorithm = subject.build()
    scored = scored_batch(algorithm.needs)
    wide = _widened(scored, 3)
    narrow_A, wide_A = (subject.build().advantages(batch).advantages_BT for batch in (scored, wide))
    expect(
        torch.allclose(wide_A[:, :STEPS], narrow_A, rtol=1e-5, atol=1e-6) and not wide_A[:, STEPS:].any(),
        "three more padded steps change the advantages; use the mask in every reduction",
    )
    batch, outputs = train_batch(algorithm)
    plain = algorithm.loss(outputs, batch).total.item()
    padded = algorithm.loss(_widened(outputs, 3), _widened(batch, 3)).total.item()
    expect(
        abs(plain - padded) <= 1e-6 + 1e-5 * abs(plain),
        f"three more padded steps change the loss from {plain:.6f} to {padded:.6f}; use the mask",
    )


def check_algorithms_masked_gradient(subject: Subject) -> None:
    """Masked decisions get exactly zero gradient."""
    algorithm = subject.build()
    batch, outputs = train_batch(algorithm)
    gradients = _gradients(algorithm, outputs, batch, [slice(0, len(batch.mask_BT))])
    for name, gradient_BT in gradients.items():
        if name != "the loss":
            expect(not gradient_BT[~batch.mask_BT].any(), f"{name} is not zero where the mask is False")


def check_algorithms_empty_rows(subject: Subject) -> None:
    """Rows without a trained decision, and batches of them, give a finite loss of zero."""
    algorithm = subject.build()
    batch, outputs = train_batch(algorithm)
    empty = replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))
    total = algorithm.loss(outputs, empty).total
    expect(
        torch.isfinite(total) and float(total.detach()) == 0.0,
        f"a batch whose mask is all False has the loss {float(total.detach())}; it must be 0",
    )
    expect(total.requires_grad, "the loss of a fully masked batch has no gradient graph; backward would fail")


def check_algorithms_state(subject: Subject) -> None:
    """The state survives a round trip through JSON."""
    first, second = subject.build(), subject.build()
    batch = scored_batch(first.needs)
    first.advantages(batch)
    try:
        state = json.loads(json.dumps(first.state_dict()))
    except TypeError as err:
        expect(False, f"state_dict() is not JSON-able ({err}); keep to numbers, strings, lists and dicts")
    second.load_state_dict(state)
    pair = [algorithm.advantages(batch).advantages_BT for algorithm in (first, second)]
    expect(torch.equal(*pair), "after load_state_dict(state_dict()) the advantages differ; save all state")


def scored_batch(needs: AlgorithmNeeds, seed: int = 0) -> ScoredBatch:
    """Groups of the size needed; the last one has equal rewards, the last row no trained decision."""
    generator = torch.Generator().manual_seed(seed)
    rows = GROUPS * needs.group_size
    rewards_B = torch.rand(rows, generator=generator)
    rewards_B[-needs.group_size :] = 0.5
    lengths_B = torch.arange(rows) % STEPS + 1
    lengths_B[-1] = 0
    mask_BT = torch.arange(STEPS)[None] < lengths_B[:, None]

    def column() -> Tensor:
        return torch.where(mask_BT, -torch.rand(rows, STEPS, generator=generator), OFF_MASK)

    return ScoredBatch(
        rewards_B=rewards_B,
        groups_B=torch.arange(rows) // needs.group_size,
        mask_BT=mask_BT,
        logprobs_BT=column(),
        truncated_B=torch.arange(rows) % 3 == 0,
        reference_logprobs_BT=column() if needs.reference else None,
        values_BT=column() if needs.critic != "none" else None,
        baselines_B=torch.rand(rows, generator=generator) if needs.greedy_baseline else None,
        max_length=STEPS if needs.length_limit else 0,
    )


def train_batch(algorithm: Algorithm) -> tuple[TrainBatch, PolicyOutputs]:
    """A micro-batch with the algorithm's own advantages, slightly off-policy outputs as leaves."""
    scored = scored_batch(algorithm.needs)
    made: Advantages = algorithm.advantages(scored)
    batch = TrainBatch(
        inputs={},
        mask_BT=scored.mask_BT if made.mask_BT is None else scored.mask_BT & made.mask_BT,
        advantages_BT=made.advantages_BT,
        rollout_logprobs_BT=scored.logprobs_BT,
        old_logprobs_BT=scored.logprobs_BT,
        reference_logprobs_BT=scored.reference_logprobs_BT,
        returns_BT=made.returns_BT,
        values_BT=scored.values_BT,
        max_length=scored.max_length,
    )
    noise_BT = torch.rand(scored.mask_BT.shape, generator=torch.Generator().manual_seed(1)) - 0.5
    outputs = PolicyOutputs(
        logprobs_BT=scored.logprobs_BT + 0.3 * noise_BT,
        entropy_BT=noise_BT.abs() if algorithm.needs.entropy else None,
        values_BT=noise_BT if algorithm.needs.critic == "head" else None,
    )
    return batch, _leaves(outputs)


def _leaves(outputs: PolicyOutputs) -> PolicyOutputs:
    leaves: dict[str, Any] = {  # tensors or None
        name: None if value is None else value.detach().clone().requires_grad_()
        for name, value in vars(outputs).items()
    }
    return PolicyOutputs(**leaves)


def _gradients(
    algorithm: Algorithm, outputs: PolicyOutputs, batch: TrainBatch, parts: list[slice]
) -> dict[str, Tensor]:
    """The summed loss and its gradient with respect to every output."""
    fresh = _leaves(outputs)
    total = torch.zeros(())
    for rows in parts:
        terms: LossTerms = algorithm.loss(_cut(fresh, rows), _cut(batch, rows))
        expect(terms.total.ndim == 0, f"the loss has shape {tuple(terms.total.shape)}; return a scalar sum")
        total = total + terms.total
    total.backward()  # type: ignore[no-untyped-call]
    found = {"the loss": total.detach()}
    for name, leaf in vars(fresh).items():
        if leaf is not None:
            found[f"the gradient of {name}"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return found


def _size(algorithm: Algorithm, outputs: PolicyOutputs, batch: TrainBatch) -> float:
    """The sum of what each row's loss is without its sign: sums that cancel are rounded by that much."""
    rows = [slice(i, i + 1) for i in range(len(batch.mask_BT))]
    return sum(abs(algorithm.loss(_cut(outputs, row), _cut(batch, row)).total.item()) for row in rows)


def _slices(sizes: list[int], rows: int) -> list[slice]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], rows], strict=True)]


def _cut(record: Any, rows: slice) -> Any:  # Any: a PolicyOutputs or TrainBatch
    changed = {
        item.name: getattr(record, item.name)[rows]
        for item in fields(record)
        if isinstance(getattr(record, item.name), torch.Tensor)
    }
    return replace(record, **changed)


def _widened(record: Any, steps: int) -> Any:  # Any: any record of [B, T] tensors
    """Append padded steps with values that must not matter."""
    changed = {}
    for item in fields(record):
        value = getattr(record, item.name)
        if item.name.endswith("_BT") and value is not None:
            fill = False if value.dtype == torch.bool else OFF_MASK
            changed[item.name] = torch.cat([value, value.new_full((len(value), steps), fill)], dim=1)
    return replace(record, **changed)
