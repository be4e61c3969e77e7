"""The settings of a run, as dataclasses; component sections take their shape from the plugin's spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlinf_core.api.backend import LoRAConfig, OptimizerConfig
from rlinf_core.api.capabilities import Modality
from rlinf_core.types import OWN, Sampling


@dataclass(frozen=True)
class Component:
    """A plugin chosen by name with its own config dataclass."""

    kind: str  # "algorithms", as in the entry-point group
    name: str
    config: Any  # an instance of the plugin's config dataclass


@dataclass(frozen=True)
class WeightedReward:
    """One term of the composed reward."""

    component: Component
    weight: float = 1.0


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    steps: int = 100  # of the outer loop: one rollout batch each
    prompts_per_step: int = 32  # prompts (or initial states); times the group size = samples
    samples_per_step: int = 0  # instead of prompts_per_step: samples, in whole groups; 0 = not used
    mini_batches: int = 1  # optimizer steps per rollout batch
    update_epochs: int = 1  # passes over each rollout batch
    micro_batch_tokens: int = 8192  # tokens of one pass on one rank, padding included where a model pads
    old_logprobs: Literal["auto", "rollout", "recompute"] = "auto"  # auto = recompute for several updates
    max_staleness: int = 0  # steps that the weights which made a sample may be behind; 0 = on-policy
    partial_rollouts: bool = False  # make responses in parts, by the weights of each step until then
    skip_gradient_free: bool = True  # leave out rows whose loss has exactly zero gradient
    max_skipped_updates: int = 5  # left out in a row for a loss that is not finite; more end the run
    device_weights: bool = True  # updates pass from GPU to GPU where both sides have one; else by host memory
    check_weights: bool = False  # compare checksums of every weight update, within a machine too
    max_prompt_tokens: int = 0  # drop longer prompts; 0 = longer than the context is an error
    num_envs: int = 0  # environments that run at once over all ranks; 0 = every episode of a step, at most 64
    reward_shaping: Literal["none", "success", "relative"] = (
        "none"  # success: 1 for the action that succeeds; relative: how much more than the action before
    )


@dataclass(frozen=True)
class EvalConfig:
    """Validation on held-out data."""

    every: int = 10  # steps; 0 = only before the first and after the last step
    samples: int = 256  # held-out prompts
    temperature: float | None = None  # None = as in training


@dataclass(frozen=True)
class CheckpointConfig:
    """Saving."""

    every: int = 50  # steps; 0 = only at the end
    keep: int = 2  # newest ones kept; 0 = all
    keep_best: str = ""  # keep that of the best value of a metric too; -METRIC = the lowest; "" = off
    keep_batches: int = 0  # steps whose rows are kept in RUN/batches too, for `rlinf replay`; 0 = none
    background: bool = True  # written while training goes on, from a copy in host memory
    export: bool = True  # write RUN/export, which transformers loads, at the end


@dataclass(frozen=True)
class AgentConfig:
    """Responses of several turns, between which tools answer; `tools` names these."""

    format: Literal["json", "tags"] = "json"  # of calls: <tool_call>{...}</tool_call>, or <NAME>...</NAME>
    marks: tuple[str, str, str, str] = (  # of tags: before and behind a call, before and behind a result
        "<{name}>",
        "</{name}>",
        "<result>",
        "</result>",
    )
    turns: Literal["plain", "chat"] = "plain"  # chat = by the model's chat template; else within one text
    max_turns: int = 8  # times that tools answer in one response
    max_result_tokens: int = 256  # of what a tool says; the rest is cut
    timeout_s: float = 10.0  # a call
    concurrency: int = 16  # calls of tools, or episodes of a program, at a time on each rank
    overlap: bool = False  # generate while tools work; last bits then depend on time
    program: str = ""  # of an outside agent: module:function or ./file.py:function; "" = none
    episode_s: float = 600.0  # that it may take


@dataclass(frozen=True)
class WarmStartConfig:
    """Supervised steps on demonstrations before RL: a text task's dataset holds them, an embodied task names
    recorded episodes."""

    demonstrations: str = field(default="", metadata={"path": True})  # folder of recorded episodes
    steps: int = 0  # supervised steps; 0 = none
    batch_size: int = 64  # demonstrations (of episodes: decisions) per step
    lr: float = 1e-3  # learning rate of these steps
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the learning rate, over these steps


@dataclass(frozen=True)
class RewardPoolConfig:
    """Processes that score, and how long they may take."""

    workers: int = 1  # 0 = in the reward worker itself, without a deadline (for debugging)
    timeout_s: float = 10.0  # an item
    retries: int = 1  # of an item after an error or a timeout
    max_error_rate: float = 0.2  # of a step's samples with error or timeout; above it the run ends


@dataclass(frozen=True)
class EnvPoolConfig:
    """Worker processes that step environments."""

    processes: int = 0  # of each environment rank; 0 = none, or one in an environment of its own
    isolated: Literal["auto", "always", "never"] = "auto"  # in its own environment; auto = if it is there
    timeout_s: float = 120.0  # that a process may take to answer
    restarts: int = 50  # of processes that die, hang or raise, on each environment rank


@dataclass(frozen=True)
class RolloutProcessConfig:
    """The process of a rollout engine that runs in one of its own."""

    isolated: Literal["auto", "always", "never"] = "auto"  # in its own environment; auto = if it is there
    timeout_s: float = 120.0  # that it may take to answer, or to make a step


@dataclass(frozen=True)
class VideoConfig:
    """Videos of episodes, under RUN/videos."""

    every: int = 0  # steps: evaluations after multiples of it, and the last one, are filmed; 0 = none
    episodes: int = 4  # that are filmed each time: the first ones
    fps: int = 20  # actions shown a second
    overlay: bool = True  # write reward, value, outcome and instruction below the pictures
    train: bool = False  # film the training of these steps too


@dataclass(frozen=True)
class ScheduleConfig:
    """Where and how components run, as far as it is chosen from what was measured."""

    profile: str = field(default="", metadata={"path": True})  # a profile (YAML) to plan from; "" = measure
    profile_steps: int = 2  # measured steps of each plan that is tried
    dynamic: Literal["off", "step", "in-step"] = (
        "step"  # step = the plan may change; in-step = and devices are lent
    )
    stages: int = 0  # groups of environments that take turns with the policy; 0 = chosen
    chunk: int = 0  # samples that leave a component at once; 0 = chosen
    scale: tuple[Mapping[str, int], ...] = ()  # ranks after steps: [{step: 20, actor: 2}]; () = fixed


@dataclass(frozen=True)
class PolicyConfig:
    """A policy beside the run's own, called by `agent.program`; what is not set is as the run's."""

    model: Component
    algo: Component  # its update
    optimizer: OptimizerConfig
    lora: LoRAConfig
    warm_start: bool = True  # learns from the demonstrations of the warm start too


@dataclass(frozen=True)
class RunConfig:
    """Everything about one run, resolved and checked."""

    algo: Component
    backend: Component
    model: Component
    engine: Component
    rollout: Component | None = None  # text tasks
    data: Component | None = None  # text tasks
    rewards: tuple[WeightedReward, ...] = ()
    simulator: Component | None = None  # embodied tasks
    critic: Component | None = None  # the critic's model, if not of the policy's kind
    trackers: tuple[Component, ...] = ()
    tools: tuple[Component, ...] = ()  # that a language model may call
    seed: int = 0  # of everything drawn at random
    output: str = ""  # RUN; "" = runs/NAME-TIME
    mode: Literal["auto", "collocated", "disaggregated", "hybrid"] = "auto"  # auto = the fastest as measured
    placement: Mapping[str, Any] = field(default_factory=dict)  # component -> its devices; {} = chosen
    plan: str = field(default="", metadata={"path": True})  # a plan (YAML) to run; "" = chosen
    ranks: int = 0  # devices of this job on this machine; 0 = from the machine
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    critic_optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    sampling: Sampling = field(default_factory=Sampling)
    agent: AgentConfig = AgentConfig()
    policies: Mapping[str, PolicyConfig] = field(default_factory=dict)  # beside the run's own, by name
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    reward_pool: RewardPoolConfig = RewardPoolConfig()
    env_pool: EnvPoolConfig = EnvPoolConfig()
    rollout_process: RolloutProcessConfig = RolloutProcessConfig()
    video: VideoConfig = VideoConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    origins: Mapping[str, str] = field(default_factory=dict)  # dotted key -> where its value came from


COMPONENTS: Mapping[str, str] = {  # section -> kind of plugin
    "algo": "algorithms",
    "backend": "backends",
    "rollout": "rollouts",
    "model": "models",
    "data": "datasets",
    "simulator": "simulators",
    "critic": "models",
    "engine": "engines",
}
COMPONENT_LISTS: Mapping[str, str] = {"reward": "rewards", "trackers": "trackers", "tools": "tools"}
SECTIONS: Mapping[str, type] = {
    "train": TrainConfig,
    "optimizer": OptimizerConfig,
    "critic_optimizer": OptimizerConfig,
    "lora": LoRAConfig,
    "sampling": Sampling,
    "agent": AgentConfig,
    "eval": EvalConfig,
    "checkpoint": CheckpointConfig,
    "warm_start": WarmStartConfig,
    "reward_pool": RewardPoolConfig,
    "env_pool": EnvPoolConfig,
    "rollout_process": RolloutProcessConfig,
    "video": VideoConfig,
    "schedule": ScheduleConfig,
}
POLICY_COMPONENTS: Sequence[str] = ("model", "algo")  # of a policy, in `policies.NAME`
POLICY_SECTIONS: Sequence[str] = ("optimizer", "lora")
SCALARS: Sequence[str] = ("seed", "output", "mode", "placement", "plan", "ranks")  # fields of RunConfig
INHERITS: Mapping[str, str] = {"critic_optimizer": "optimizer"}  # keys not set there are set as here
RIVALS: Mapping[str, str] = {  # two ways to say one thing; 0 = not said
    "train.prompts_per_step": "train.samples_per_step",
    "train.samples_per_step": "train.prompts_per_step",
}
UNUSED: Mapping[Modality, Sequence[str]] = {  # dotted keys, whole sections or single ones
    "text": (
        "train.num_envs",
        "train.reward_shaping",
        "env_pool",
        "video",
        "schedule.stages",
        "warm_start.demonstrations",
    ),
    "embodied": (
        "rollout",
        "rollout_process",
        "data",
        "reward",
        "sampling",
        "tools",
        "agent",
        "policies",
        "reward_pool",
        "train.max_prompt_tokens",
        "train.partial_rollouts",
    ),
}


def of_policy(config: RunConfig, name: str) -> RunConfig:
    """The run as it is for one of its policies."""
    if name == OWN:
        return replace(config, policies={})
    policy = config.policies[name]
    return replace(
        config,
        policies={},
        model=policy.model,
        algo=policy.algo,
        optimizer=policy.optimizer,
        lora=policy.lora,
    )


def task_of(config: RunConfig) -> Modality:
    """The kind of task a run is for."""
    return "text" if config.simulator is None else "embodied"


def unused_keys(config: RunConfig) -> Sequence[str]:
    """The dotted keys that the run's task does not use."""
    return UNUSED[task_of(config)]


def used(key: str, unused: Sequence[str]) -> bool:
    """Whether a dotted key is outside of all unused ones."""
    return not any(key == name or key.startswith(f"{name}.") for name in unused)
