"""Registers the rewards that ship with the core."""

from __future__ import annotations

from rlinf_core.builtin.rewards import config
from rlinf_core.plugins import hookimpl
from rlinf_core.plugins.specs import RewardSpec

_ROOM = "rlinf_core.builtin.rewards"


@hookimpl
def rlinf_register_rewards() -> list[RewardSpec]:
    """Offer the rewards for text."""
    return [
        RewardSpec(
            name="exact",
            summary="1 if the response equals the answer",
            target=f"{_ROOM}.exact:Exact",
            config=config.ExactConfig,
        ),
        RewardSpec(
            name="math",
            summary="1 if the final answer is mathematically equal to the answer",
            target=f"{_ROOM}.math:Math",
            config=config.MathConfig,
        ),
        RewardSpec(
            name="regex",
            summary="A value for responses that match a pattern",
            target=f"{_ROOM}.regex:Regex",
            config=config.RegexConfig,
            example={"pattern": r"\d+"},
        ),
        RewardSpec(
            name="format",
            summary="A value for responses made of <think> and <answer> sections",
            target=f"{_ROOM}.regex:Format",
            config=config.FormatConfig,
        ),
        RewardSpec(
            name="length",
            summary="A penalty for long responses",
            target=f"{_ROOM}.length:Length",
            config=config.LengthConfig,
        ),
        RewardSpec(
            name="reasoning_gym",
            summary="The scorer of the reasoning-gym task that asked",
            target=f"{_ROOM}.reasoning_gym:ReasoningGymReward",
            config=config.ReasoningGymRewardConfig,
        ),
        RewardSpec(
            name="code",
            summary="1 if the response's Python program passes the tests of the answer, run without rights",
            target=f"{_ROOM}.code:Code",
            config=config.CodeConfig,
        ),
        RewardSpec(
            name="returned",
            summary="What the program of an outside agent has returned (agent.program)",
            target=f"{_ROOM}.returned:Returned",
        ),
        RewardSpec(
            name="python",
            summary="Your own function, by package.module:function or ./file.py:function",
            target=f"{_ROOM}.python:PythonReward",
            config=config.PythonConfig,
        ),
    ]
