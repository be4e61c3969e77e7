"""The parts of a tool loop, by a run's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlinf_core.agents.formats import FORMATS, first_arguments
from rlinf_core.agents.turns import Turns

if TYPE_CHECKING:
    from rlinf_core.api import TextProcessor, Tool
    from rlinf_core.config.schema import AgentConfig


def make_turns(processor: TextProcessor, tools: Mapping[str, Tool], agent: AgentConfig) -> Turns:
    """How the model and these tools talk."""
    form = FORMATS[agent.format](first_arguments(described(tools)), agent.marks)
    return Turns(processor, form, agent.turns, agent.max_result_tokens)


def described(tools: Mapping[str, Tool]) -> list[dict[str, Any]]:  # Any: JSON values
    """Functions as chat templates take them."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for name, tool in tools.items()
    ]
