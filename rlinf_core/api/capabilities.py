"""What plugins state about themselves, so that the core composes by capability, never by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AdvantageScope = Literal["sample", "group", "batch"]
Critic = Literal["none", "head", "own"]
LogprobLevel = Literal["chunk", "action", "token"]
Modality = Literal["text", "embodied"]
ObservationKind = Literal["state", "images", "instruction"]


@dataclass(frozen=True)
class AlgorithmNeeds:
    """What an algorithm, with its config, needs around it."""

    advantage_scope: AdvantageScope = "sample"
    group_size: int = 1  # responses per prompt (episodes per initial state)
    critic: Critic = "none"  # fills `values`: a value head of the policy, or a model of its own
    reference: bool = False  # fills `reference_logprobs`
    entropy: bool = False  # the trainer computes entropies with gradient
    greedy_baseline: bool = False  # fills `baselines`: the reward of one greedy response a prompt (text)
    max_rounds: int = 0  # of generation, until a step is full of groups that `keep` accepts; 0 = keep all
    length_limit: bool = False  # uses `max_length`, which text tasks have
    recompute_old: bool = False  # old log-probabilities are the trainer's before its first update
    logprob_level: LogprobLevel = "chunk"  # what of an embodied decision gets a log-probability of its own
    off_policy: bool = False  # its loss corrects for rows that older weights made
    imitates: bool = False  # learns from demonstrations; the policy generates to be evaluated alone


@dataclass(frozen=True)
class BackendCapabilities:
    """What a training backend can do."""

    modalities: frozenset[Modality] = frozenset({"text", "embodied"})
    lora: bool = False
    lora_variants: frozenset[str] = frozenset({"lora"})  # with `lora`
    offload: bool = False
    precisions: frozenset[str] = frozenset({"fp32"})
    reference: bool = False  # can compute log-probabilities of the initial policy
    values: bool = True  # trains the value heads of models
    any_order: bool = False  # some of its trainers have `any_order`: those whose ranks hold whole models
    resize: bool = False  # its number of ranks can change while a run goes on


@dataclass(frozen=True)
class RolloutCapabilities:
    """What a rollout engine can do."""

    top_p: bool = True
    top_k: bool = True
    stop_texts: bool = True
    lora: bool = False
    lora_variants: frozenset[str] = frozenset({"lora"})  # with `lora`
    abort: bool = False  # what is being generated can be interrupted and continued
    continues: bool = False  # goes on with responses that were `begun`, and ends them `until` it is told to


@dataclass(frozen=True)
class ModelCapabilities:
    """What a model offers."""

    modality: Modality = "text"
    observations: frozenset[ObservationKind] = frozenset(
        {"state"}
    )  # what an embodied model cannot do without
    value_head: bool = False
    lora: bool = False
    logprob_levels: frozenset[LogprobLevel] = frozenset({"chunk"})  # of embodied models
    discrete_actions: bool = False
    continuous_actions: bool = False
    images: bool = False  # a text model reads the images of prompts
    demonstrations: bool = False  # an embodied model learns from others' actions: it has `label`


@dataclass(frozen=True)
class SimulatorCapabilities:
    """What a simulator offers."""

    save_state: bool = False
    render: bool = False
    offload: bool = False
    expert: bool = False  # a scripted one, for demonstrations
