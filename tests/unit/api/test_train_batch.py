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
