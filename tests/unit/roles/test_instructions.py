"""What a simulator asks for, and what a model drew, reach the record of an episode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_core.api import ActionSample, Observation, Transition
from rlinf_core.api.instructions import WIDTH, instruction_bytes, instruction_texts
from rlinf_core.errors import PluginError
from rlinf_core.roles.episodes import Seats, observation_arrays
from rlinf_core.roles.estimates import _last_state
from rlinf_core.types import EpisodeRequest

TEXTS = ["open the drawer", "", "größer als zuvor"]


def test_instructions_survive_as_bytes_of_one_width() -> None:
    bytes_NW = instruction_bytes(TEXTS)
    assert bytes_NW.shape == (3, WIDTH)
    assert bytes_NW[2, :4].tolist() == [ord("g"), ord("r"), 0xC3, 0xB6]  # ö has two bytes
    assert instruction_texts(bytes_NW) == TEXTS
    assert instruction_texts(bytes_NW.reshape(1, 3, WIDTH)) == TEXTS
    with pytest.raises(PluginError, match=f"an instruction of {WIDTH + 1} bytes; {WIDTH} is the most"):
        instruction_bytes(["x" * (WIDTH + 1)])


def test_an_observation_travels_with_its_instruction_also_that_of_one_environment() -> None:
    seen = Observation(state=np.zeros((3, 2), dtype=np.float32), instruction=TEXTS)
    assert instruction_texts(observation_arrays(seen)["instruction"]) == TEXTS
    assert instruction_texts(observation_arrays(seen, 2)["instruction"]) == TEXTS[2:]


def step(texts: list[str], truncated: bool) -> Transition:
    shown = Observation(state=np.zeros((2, 1), dtype=np.float32), instruction=texts)
    flags = np.full((2, 1), truncated)
    return Transition(
        shown,
        np.ones((2, 1), dtype=np.float32),
        np.zeros((2, 1), dtype=bool),
        flags,
        np.ones((2, 1), dtype=bool),
        np.zeros(2, dtype=bool),
        shown if truncated else None,
    )


def test_a_record_holds_the_instruction_and_the_latents_of_every_decision() -> None:
    seats = Seats(2, max_episode_steps=9)
    for n in range(2):
        seats.seat(n, EpisodeRequest(0, n, 0, n))
    shown = observation_arrays(Observation(instruction=TEXTS[:2]))
    for decision in range(3):
        latents = torch.tensor([[decision, 10], [decision, 20]])
        sample = ActionSample(torch.zeros(2, 1, 1), torch.zeros(2), latents=latents)
        ended = seats.add(shown, sample, step(TEXTS[:2], truncated=decision == 2), version=0)
        assert len(ended) == (2 if decision == 2 else 0)
    first, second = ended
    assert instruction_texts(first.observations["instruction"]) == TEXTS[:1] * 3
    assert second.latents is not None
    assert second.latents.tolist() == [[0, 20], [1, 20], [2, 20]]
    last = _last_state(first)
    assert last.latents.shape == (1, 2)  # type: ignore[attr-defined]
    assert instruction_texts(last.observations["instruction"]) == TEXTS[:1]  # type: ignore[attr-defined]
    assert _last_state(replace(first, latents=None)).latents is None  # type: ignore[attr-defined]
