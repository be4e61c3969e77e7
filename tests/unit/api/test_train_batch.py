"""A batch that goes to another device."""

from __future__ import annotations

import torch

from rlinf_core.api import TrainBatch


def test_every_tensor_of_a_batch_goes_and_what_is_no_tensor_stays() -> None:
    mask_BT = torch.ones(2, 3, dtype=torch.bool)
    batch = TrainBatch({"ids": torch.zeros(2, 4)}, mask_BT, torch.ones(2, 3), torch.ones(2, 3), max_length=7)
    assert batch.to(torch.device("cpu")) is batch
    moved = batch.to(torch.device("meta"))
    held = (*moved.inputs.values(), moved.mask_BT, moved.advantages_BT, moved.rollout_logprobs_BT)
    assert {tensor.device.type for tensor in held} == {"meta"}
    assert (moved.max_length, moved.old_logprobs_BT) == (7, None)
    assert batch.mask_BT.device.type == "cpu"


def test_a_batch_that_goes_to_a_device_knows_its_decisions_without_asking_it() -> None:
    mask_BT = torch.tensor([[True, True, False], [False, True, True]])
    batch = TrainBatch({}, mask_BT, torch.ones(2, 3), torch.ones(2, 3))
    moved = batch.to(torch.device("meta"))  # where no number can be asked for
    assert (batch.decisions, moved.decisions) == (4, 4)
    assert batch.holed_mask_BT is batch.mask_BT
    assert moved.holed_mask_BT is moved.mask_BT


def test_a_mask_without_holes_need_not_be_applied() -> None:
    batch = TrainBatch({}, torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3), torch.ones(2, 3))
    assert (batch.decisions, batch.holed_mask_BT) == (6, None)
