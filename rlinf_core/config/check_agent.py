"""Checks of responses that call tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf_core.config.check_schedule import came
from rlinf_core.config.schema import RunConfig


def agent_problems(config: RunConfig, specs: dict[str, Any]) -> Iterable[str]:
    """What tools take of the rollout engine."""
    if config.agent.program and config.tools:
        yield (
            "agent.program: a program calls tools itself, so that those of the run are not called; set "
            f"tools=[], or agent.program=''{came(config, 'agent.program')}"
        )
    if config.agent.program and config.train.partial_rollouts:
        yield (
            "train.partial_rollouts: an episode of agent.program is played by one version of the weights; "
            f"set it to false{came(config, 'train.partial_rollouts')}"
        )
    if not (config.tools or config.agent.program) or config.rollout is None or "rollout" not in specs:
        return
    if config.agent.format == "tags" and len(config.tools) > 1:
        begin = config.agent.marks[0]
        if "{name}" not in begin:
            yield (
                f"agent.marks: {begin!r} begins the calls of all {len(config.tools)} tools, so that nobody "
                f"knows which is meant; write {{name}} into it, or name one tool{came(config, 'agent.marks')}"
            )
    provides, name = specs["rollout"].provides, config.rollout.name
    if not provides.continues:
        yield (
            f"{'tools' if config.tools else 'agent.program'}: rollout engine {name!r} cannot go on with a "
            "response after somebody else has said something; choose another rollout engine"
            f"{came(config, 'tools.0.name' if config.tools else 'agent.program')}"
        )
    if config.tools and config.agent.turns == "plain" and not provides.stop_texts:
        yield (
            f"agent.turns: rollout engine {name!r} does not stop at a text, where a call ends; choose "
            f"another one, or set agent.turns=chat{came(config, 'agent.turns')}"
        )
