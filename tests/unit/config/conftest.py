"""A plugin manager over invented plugins, so that these tests need no installed one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import pytest

from rlinf_core.api.capabilities import (
    AlgorithmNeeds,
    BackendCapabilities,
    ModelCapabilities,
    RolloutCapabilities,
)
from rlinf_core.config.check import check
from rlinf_core.config.compose import Options, compose
from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import ConfigError, PluginNotFoundError
from rlinf_core.plugins.specs import (
    AlgorithmSpec,
    BackendSpec,
    DatasetSpec,
    EngineSpec,
    ModelSpec,
    PluginSpec,
    RewardSpec,
    RolloutSpec,
    SimulatorSpec,
    ToolSpec,
    TrackerSpec,
)


@dataclass(frozen=True)
class Schedule:
    """Nested settings."""

    start: float = 0.0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupConfig:
    """Settings of the invented algorithm."""

    group_size: int = 8  # responses per prompt
    clip_ratio: float = 0.2  # half width
    clip_ratio_high: float | None = None
    baseline: Literal["group", "leave-one-out"] = "group"
    reference: bool = False
    critic: str = "none"
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        if self.clip_ratio <= 0:
            raise ConfigError(f"clip_ratio must be above 0, got {self.clip_ratio}")


@dataclass(frozen=True)
class AskingConfig:
    """Settings of an algorithm that asks for much."""

    clip_ratio: float = 0.2
    rounds: int = 0
    greedy: bool = False
    limit: bool = False
    recompute: bool = False
    level: str = "chunk"


@dataclass(frozen=True)
class LmConfig:
    preset: str = ""
    path: str = ""


@dataclass(frozen=True)
class FileConfig:
    path: str = field(metadata={"path": True})
    options: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FunctionConfig:
    target: str


@dataclass(frozen=True)
class StripConfig:
    strip: bool = True
    case: str = ""

    def __post_init__(self) -> None:
        if self.case and self.strip:
            raise ValueError("reward.case (exact): leaves no room for strip")


def _needs(config: GroupConfig) -> AlgorithmNeeds:
    return AlgorithmNeeds(
        advantage_scope="group",
        group_size=config.group_size,
        reference=config.reference,
        critic=config.critic,
    )


def _asks(config: AskingConfig) -> AlgorithmNeeds:
    return AlgorithmNeeds(
        max_rounds=config.rounds,
        greedy_baseline=config.greedy,
        length_limit=config.limit,
        recompute_old=config.recompute,
        logprob_level=config.level,
    )


SPECS: list[PluginSpec] = [
    AlgorithmSpec(name="grpo", summary="Groups", target="x:X", config=GroupConfig, needs=_needs),
    AlgorithmSpec(name="plain", summary="One sample", target="x:X", needs=lambda _: AlgorithmNeeds()),
    AlgorithmSpec(name="asking", summary="Much", target="x:X", config=AskingConfig, needs=_asks),
    BackendSpec(
        name="fsdp",
        summary="",
        target="x:X",
        rollout="hf",
        provides=BackendCapabilities(lora=True, any_order=True),
    ),
    BackendSpec(
        name="headless", summary="", target="x:X", rollout="hf", provides=BackendCapabilities(values=False)
    ),
    RolloutSpec(name="hf", summary="", target="x:X", provides=RolloutCapabilities(lora=True)),
    RolloutSpec(name="going", summary="", target="x:X", provides=RolloutCapabilities(continues=True)),
    RolloutSpec(
        name="bare", summary="", target="x:X", provides=RolloutCapabilities(False, False, False, False)
    ),
    ModelSpec(name="hf_lm", summary="", target="x:X", config=LmConfig, provides=ModelCapabilities(lora=True)),
    ModelSpec(name="filed", summary="", target="x:X", config=FileConfig),
    ModelSpec(
        name="mlp",
        summary="",
        target="x:X",
        provides=ModelCapabilities(modality="embodied"),
        suggests={"optimizer": {"lr": 0.25, "grad_clip": 9.0}},
    ),
    DatasetSpec(name="sort_digits", summary="", target="x:X"),
    DatasetSpec(name="jsonl", summary="", target="x:X", config=FileConfig),
    DatasetSpec(name="hf", summary="", target="x:X", config=FileConfig),
    RewardSpec(name="exact", summary="", target="x:X", config=StripConfig),
    RewardSpec(name="format", summary="", target="x:X"),
    RewardSpec(name="python", summary="", target="x:X", config=FunctionConfig),
    SimulatorSpec(name="line", summary="", target="x:X"),
    EngineSpec(name="local", summary="", target="x:X"),
    ToolSpec(name="adder", summary="", target="x:X"),
    ToolSpec(name="clock", summary="", target="x:X"),
    TrackerSpec(name="tensorboard", summary="", target="x:X"),
]


QUICKSTART = "model: {name: hf_lm, preset: tiny}\ndata: sort_digits\nreward: exact\n"


class Specs:
    """What the configuration room asks of a manager."""

    def names(self, kind: str) -> list[str]:
        return sorted(spec.name for spec in SPECS if spec.kind == kind)

    def get(self, kind: str, name: str) -> PluginSpec:
        for spec in SPECS:
            if (spec.kind, spec.name) == (kind, name):
                return spec
        raise PluginNotFoundError(f"no {kind} plugin {name!r}; installed: {', '.join(self.names(kind))}")


@pytest.fixture
def manager() -> Specs:
    return Specs()


@pytest.fixture(autouse=True)
def quickstart(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quickstart over the invented plugins in the place of the packaged one."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "quickstart.yaml").write_text(QUICKSTART)
    monkeypatch.setattr("rlinf_core.config.compose.RECIPES", folder)


@pytest.fixture
def run(manager: Specs) -> Callable[..., RunConfig]:
    """`run("KEY=VALUE", ..., steps=3)`: the composed settings."""

    def composed(*overrides: str, **flags: object) -> RunConfig:
        return compose(Options(overrides=overrides, **flags), manager)  # type: ignore[arg-type]

    return composed


@pytest.fixture
def problems(run: Callable[..., RunConfig]) -> Callable[..., list[str]]:
    """The lines of the error that a composition raises."""

    def told(*overrides: str, **flags: object) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            run(*overrides, **flags)
        return str(caught.value).splitlines()

    return told


@pytest.fixture
def refused(run: Callable[..., RunConfig], manager: Specs) -> Callable[..., list[str]]:
    """The lines that the checks raise."""

    def told(*overrides: str, ranks: int = 0, **flags: object) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            check(run(*overrides, **flags), manager, ranks)
        return str(caught.value).splitlines()

    return told
