"""What plugins state about themselves, so that the core composes by capability, never by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AdvantageScope = Literal["sample", "group", "batch"]
Modality = Literal["text", "embodied"]


@dataclass(frozen=True)
class AlgorithmNeeds:
    """What an algorithm, with its config, needs around it."""

    advantage_scope: AdvantageScope = "sample"
    group_size: int = 1  # responses per prompt (episodes per initial state)
    critic: bool = False  # fills `values`
    reference: bool = False  # fills `reference_logprobs`
    entropy: bool = False  # the trainer computes entropies with gradient
    max_staleness: int = 0  # weight versions a sample may lag behind the trainer


@dataclass(frozen=True)
class BackendCapabilities:
    """What a training backend can do."""

    modalities: frozenset[Modality] = frozenset({"text", "embodied"})
    lora: bool = False
    offload: bool = False
    precisions: frozenset[str] = frozenset({"fp32"})
    reference: bool = False  # can compute log-probabilities of the initial policy


@dataclass(frozen=True)
class RolloutCapabilities:
    """What a rollout engine can do."""

    top_p: bool = True
    top_k: bool = True
    stop_texts: bool = True
    lora: bool = False


@dataclass(frozen=True)
class ModelCapabilities:
    """What a model offers."""

    modality: Modality = "text"
    value_head: bool = False
    lora: bool = False
    discrete_actions: bool = False
    continuous_actions: bool = False


@dataclass(frozen=True)
class SimulatorCapabilities:
    """What a simulator offers."""

    save_state: bool = False
    render: bool = False
    offload: bool = False
