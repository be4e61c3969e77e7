"""Checks of policies beside the run's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rlinf_core.api.capabilities import AlgorithmNeeds
from rlinf_core.config.check_schedule import came
from rlinf_core.config.resolve import SpecSource
from rlinf_core.config.schema import RunConfig, of_policy
from rlinf_core.errors import ConfigError

Check = Callable[[RunConfig, SpecSource], list[str]]


def policy_problems(
    config: RunConfig, own: AlgorithmNeeds, manager: SpecSource, known: Sequence[str], check: Check
) -> list[str]:
    """Of all of them; `known` are those of the run itself, which each policy has too."""
    if not config.policies:
        return []
    found = [*_alone(config, own)]
    for name in config.policies:
        found += [f"policies.{name}: {problem}" for problem in _beside(config, name, own, manager)]
        try:
            check(replace(of_policy(config, name), origins={}), manager)
        except ConfigError as err:
            new = [line for line in str(err).splitlines() if not any(line in each for each in known)]
            found += [f"policies.{name}: {line}" for line in new]
    return found


def _alone(config: RunConfig, own: AlgorithmNeeds) -> Iterator[str]:
    """What the run itself has to be."""
    names = ", ".join(config.policies)
    if not config.agent.program:
        yield (
            f"policies: {names} would never be called; name agent.program, which calls them, or set "
            "policies={}"
        )
    if own.critic == "own":
        yield (
            f"algo: {config.algo.name!r} with these settings trains a critic of its own, which runs of "
            "several policies have not; give the policies a value head (algo.critic=head), or set policies={}"
        )
    if own.imitates:
        yield f"algo: {config.algo.name!r} imitates demonstrations and calls no policy; set policies={{}}"
    if config.schedule.dynamic == "in-step":
        yield (
            "schedule.dynamic: in-step lends devices to the training of one policy; set it to step or off"
            f"{came(config, 'schedule.dynamic')}"
        )
    if config.schedule.scale:
        yield (
            "schedule.scale: the number of ranks of several policies does not change while they train; set "
            f"it to []{came(config, 'schedule.scale')}"
        )


def _beside(config: RunConfig, name: str, own: AlgorithmNeeds, manager: SpecSource) -> Iterator[str]:
    """What one of them has to be."""
    algo = config.policies[name].algo
    needs: AlgorithmNeeds = manager.get(algo.kind, algo.name).needs(algo.config)
    if needs.critic == "own" and own.critic != "own":
        yield (
            f"algo: {algo.name!r} would train a critic of its own; choose algo.critic=head or another "
            "algorithm"
        )
    if needs.group_size not in (1, own.group_size):
        yield (
            f"algo.group_size: {needs.group_size}, and the run's is {own.group_size}; policies of one "
            "episode have one group size"
        )
    if needs.greedy_baseline or needs.max_rounds:
        what = "a greedy response to each prompt" if needs.greedy_baseline else "rounds of generation"
        yield f"algo: {algo.name!r} asks for {what}, which only the run's own policy may"
