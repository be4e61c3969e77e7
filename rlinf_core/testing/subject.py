"""What a conformance check gets: one plugin with a config, and ways to say what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any

from rlinf_core.errors import PluginError, RlinfError
from rlinf_core.isolated_rollout.proxy import IsolatedRollout
from rlinf_core.isolation import interpreter
from rlinf_core.isolation.program import Program
from rlinf_core.plugins import PluginManager, PluginSpec, RolloutSpec, plugins
from rlinf_core.pool.simulator import SimulatorPool


class CheckFailedError(RlinfError):
    """A plugin breaks a promise of its interface."""


class CheckSkipped(RlinfError):  # noqa: N818 - like pytest's own Skipped, it is no error
    """A check that does not apply to this plugin."""


@dataclass(frozen=True)
class Subject:
    """A plugin under test. `config` is an instance of the spec's dataclass. A simulator may be checked in
    `processes` of their own; `isolated` starts these, or a rollout engine's, in its own environment."""

    spec: PluginSpec
    config: Any  # each plugin has its own config dataclass
    processes: int = 0  # 0 = in this one
    isolated: bool = False

    @cached_property
    def cls(self) -> type[Any]:  # Any: the class differs by kind
        """The plugin's class. Raises `PluginError` with the cause if it does not import."""
        return self.spec.load()

    @cached_property
    def program(self) -> Program:
        """What its processes run. Skips the check where its environment is not installed."""
        if self.isolated and interpreter(self.spec) is None:
            raise CheckSkipped(f"the environment of {self.spec.name} is not installed")
        return Program.of(self.spec, "always" if self.isolated else "never")

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """A new instance: the config first, then what this kind's constructor takes."""
        if isinstance(self.spec, RolloutSpec) and self.spec.isolation is not None:
            return IsolatedRollout(
                self.config,
                *args,
                name=self.spec.name,
                target=self.spec.target,
                program=self.program,
                **kwargs,
            )
        if self.isolated or self.processes:
            return SimulatorPool(
                self.config,
                *args,
                name=self.spec.name,
                target=self.spec.target,
                program=self.program,
                processes=self.processes,
                **kwargs,
            )
        return self.cls(self.config, *args, **kwargs)


def subject(
    kind: str,
    name: str,
    config: Mapping[str, Any] | None = None,
    manager: PluginManager | None = None,
    *,
    processes: int = 0,
    isolated: bool = False,
) -> Subject:
    """The plugin with its example settings, changed by `config`. Any: values of settings.

    Raises `PluginError` when settings without a default are missing.
    """
    spec: PluginSpec = (manager or plugins()).get(kind, name)
    settings = {**spec.example, **(config or {})}
    needed = [
        item.name
        for item in fields(spec.config)
        if item.init and item.default is MISSING and item.default_factory is MISSING
    ]
    missing = [key for key in needed if key not in settings]
    if missing:
        raise PluginError(
            f"{kind} plugin {name!r} cannot be checked without {', '.join(missing)}: give it in `example` of "
            "its spec, or as KEY=VALUE"
        )
    return Subject(spec, spec.config(**settings), processes, isolated)


def expect(condition: object, message: str) -> None:
    """Raise `CheckFailedError` with a message that teaches, unless the condition holds."""
    if not condition:
        raise CheckFailedError(message)
