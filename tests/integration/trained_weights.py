"""A reward to train by, the weights of a trained group, and how far two of them lie apart."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rlinf_core.comm.stream import Stream
from rlinf_core.worker import WorkerGroup

Weights = dict[str, torch.Tensor]
REWARD = """
def letters(prompts, responses, answers, metas):
    return [sum(map(str.isdigit, response)) / 8 for response in responses]
"""


def published(actor: WorkerGroup) -> Weights:
    """Copies of the parameters that the group sends."""
    sent = actor.stage("publish", Stream.of([]), local={}, remote=True, trainable_only=False)
    return {
        name: tensor.detach().clone() for bucket in sent.collect() for name, tensor in bucket.tensors.items()
    }


def difference(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    """The largest difference of a parameter, relative to the largest entry of its tensor."""
    assert ours.keys() == theirs.keys()
    return max(
        float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp_min(1e-3))
        for name in ours
    )
