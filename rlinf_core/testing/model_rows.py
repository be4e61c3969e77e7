"""What the conformance checks of models run on: models that know their spaces, and rows for them.

Axes: B rows, T decision steps, N environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from rlinf_core.api import ActionSample, Model, Space
from rlinf_core.api.instructions import instruction_bytes
from rlinf_core.testing.fakes import sample_of
from rlinf_core.testing.subject import Subject, expect
from rlinf_core.types import Experience, Sample, Trajectory

STATE_SIZE, ACTION_SIZE, PICTURE_SIZE = 3, 2, 40
SEEDS = [1, 2, 3]
INSTRUCTIONS = ["go left", "go to the right", "stop"]


def bound_model(subject: Subject) -> Model:
    """A new model; an embodied one acts on what it says it needs."""
    model: Model = subject.build()
    if not is_text(subject):
        needed = subject.spec.provides.observations  # type: ignore[attr-defined]
        spaces = {"state": Space(shape=(STATE_SIZE,))} if "state" in needed else {}
        if "images" in needed:
            spaces["images/main"] = Space(shape=(PICTURE_SIZE, PICTURE_SIZE, 3), low=0.0, high=255.0)
        model.bind(spaces, _action_space(subject))
    return model


def _action_space(subject: Subject) -> Space:
    continuous = subject.spec.provides.continuous_actions  # type: ignore[attr-defined]
    return Space(shape=(ACTION_SIZE,)) if continuous else Space(n=4)


def is_text(subject: Subject) -> bool:
    """Whether the model writes text."""
    return bool(subject.spec.provides.modality == "text")  # type: ignore[attr-defined]


@torch.no_grad()
def rows_of(subject: Subject) -> list[Experience]:
    """Rows of different lengths: random tokens that no end id is among, or actions the model drew."""
    model = bound_model(subject)
    if is_text(subject):
        return _text_rows(model)
    module = model.module(0)
    rows: list[Experience] = []
    for n, length in enumerate((3, 1, 2)):
        seen = part(shown(subject), slice(length))
        rows.append(trajectory(seen, model.act(module, seen, SEEDS[:length]), n))
    return rows


def _text_rows(model: Model) -> list[Experience]:
    decoder = model.decoder(model.module(0), 1, model.processor().context_length)
    vocabulary = decoder.prefill([0], [np.array([1])]).shape[-1]
    special = {model.processor().pad_id, *model.processor().eos_ids}
    plain = np.array([token for token in range(vocabulary) if token not in special])
    random = np.random.default_rng(0)
    sizes = ((3, 5), (6, 2), (1, 4))
    return [sample_of(random.choice(plain, p), random.choice(plain, t), i) for i, (p, t) in enumerate(sizes)]


def seen_rows(model: Model) -> list[Sample]:
    """The same tokens about two pictures that differ."""
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (PICTURE_SIZE, PICTURE_SIZE, 3), np.uint8) for _ in range(2)]
    prompts = [model.processor().encode_with_images("1 2", [picture]) for picture in pictures]
    expect(prompts[0] == prompts[1], "pictures of one size take different tokens")
    response = model.processor().encode_response("1 2")
    rows = [sample_of(np.array(prompt), np.array(response), i) for i, prompt in enumerate(prompts)]
    for row, picture in zip(rows, pictures, strict=True):
        row.prompt = replace(row.prompt, images=(picture,))
    return rows


def shown(subject: Subject) -> dict[str, torch.Tensor]:
    """What three environments show, of what the model needs."""
    random = torch.Generator().manual_seed(0)
    size = (3, PICTURE_SIZE, PICTURE_SIZE, 3)
    seen = {
        "state": torch.randn(3, STATE_SIZE, generator=random),
        "images/main": torch.randint(256, size, generator=random, dtype=torch.uint8),
        "instruction": torch.from_numpy(instruction_bytes(INSTRUCTIONS)),
    }
    needed = subject.spec.provides.observations  # type: ignore[attr-defined]
    return {name: tensor for name, tensor in seen.items() if name.partition("/")[0] in needed}


def part(seen: Mapping[str, torch.Tensor], rows: slice) -> dict[str, torch.Tensor]:
    """What some of the environments show."""
    return {name: tensor[rows] for name, tensor in seen.items()}


def trajectory(
    seen: Mapping[str, torch.Tensor], sample: ActionSample, index: int, rows: slice = slice(None)
) -> Trajectory:
    """An episode of what was shown and done in these rows, all of it executed."""
    actions = sample.actions[rows].numpy()
    length = len(actions)
    return Trajectory(
        group=index,
        replica=0,
        seed=index,
        mask=np.ones(length, dtype=bool),
        logprobs=np.zeros(length, dtype=np.float32),
        weight_version=0,
        observations={name: tensor[rows].numpy() for name, tensor in seen.items()},
        actions=actions,
        latents=None if sample.latents is None else sample.latents[rows].numpy(),
    )


def with_positions(row: Experience, each: int) -> Experience:
    """A row whose every decision has `each` positions."""
    return replace(row, mask=row.mask.repeat(each), logprobs=row.logprobs.repeat(each))


def mask_of(rows: list[Experience]) -> torch.Tensor:
    """`[B, T]`, True where a row has a decision."""
    lengths_B = torch.tensor([len(row.mask) for row in rows])
    return torch.arange(int(lengths_B.max()))[None] < lengths_B[:, None]


def expect_close(one: torch.Tensor, other: torch.Tensor, message: str) -> None:
    """Fail with the message and the largest difference, unless it is small."""
    gap = float((one - other).detach().abs().max())
    expect(gap < 1e-4, f"{message} (by {gap:.2e}, allowed 1e-4)")
