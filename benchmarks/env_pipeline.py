"""Claim: where physics with rendering and the policy take similar time, overlapping is at least 1.5x as fast.

One rank plays eight episodes of a MuJoCo task with pictures of 128 x 128; the policy, a convolutional network
on one thread, is as large as makes both take similar time. Its convolutions are nearly all of it, so that
half the pictures cost half. Alternating: environments in the rank's process, which steps all of them, then
acts for all. Overlapped: `env_pool.processes=2`, so that one group of four is stepped in a process while the
policy looks at the other. Both play the same episodes, to the last bit, and rounds alternate.

Keys: `speedup` (alternating / overlapped, the median over rounds), `policy_over_physics` (seconds of the
policy by those of physics and rendering, alternating), `alternating_s` and `overlapped_s` of all episodes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

os.environ.setdefault("MUJOCO_GL", "osmesa")

import numpy as np
import torch
from common import finish, say

from rlinf_core.comm.stream import Stream
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.run.compose import RunGraph, make_source, start
from rlinf_core.run.planning import prepare
from rlinf_core.run.source import Source
from rlinf_core.types import Experience, Trajectory

CHANNELS = (16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128)  # first convolution; the others: twice as many
ENVS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30, help="of each episode")
    asked = parser.parse_args()
    channels, ratio = similar(asked.steps)
    with playing(channels, asked.steps) as alternating, playing(channels, asked.steps, 2) as overlapped:
        same(alternating.play(), overlapped.play())
        times: list[tuple[float, float]] = []
        for number in range(asked.rounds):
            order = (alternating, overlapped) if number % 2 else (overlapped, alternating)
            taken = {side: side.seconds() for side in order}
            times.append((taken[alternating], taken[overlapped]))
            say(f"round {number}: alternating {times[-1][0]:.3f} s, overlapped {times[-1][1]:.3f} s")
    result = {
        "speedup": statistics.median(one / other for one, other in times),
        "policy_over_physics": ratio,
        "alternating_s": statistics.median(one for one, _ in times),
        "overlapped_s": statistics.median(other for _, other in times),
        "environments": ENVS,
        "steps": asked.steps,
        "rounds": asked.rounds,
    }
    finish(result, "rlinf-core", "torch", "numpy", "gymnasium", "mujoco")


class Side:
    """One way to play the episodes."""

    def __init__(self, graph: RunGraph, source: Source) -> None:
        self.graph = graph
        self.source = source

    def play(self) -> list[Experience]:
        """All episodes."""
        return self.graph.flow.evaluate(Stream.of(self.source.eval()))

    def seconds(self) -> float:
        """That playing them takes."""
        began = time.perf_counter()
        self.play()
        return time.perf_counter() - began

    def policy_over_physics(self) -> float:
        """By what one round took of each."""
        self.play()
        self.graph.engine.drain_spans()
        self.play()
        took = {"act": 0.0, "simulate": 0.0}
        for written in self.graph.engine.drain_spans():
            if written.span.name in took:
                took[written.span.name] += written.span.end - written.span.start
        return took["act"] / took["simulate"]


@contextmanager
def playing(channels: int, steps: int, processes: int = 0) -> Iterator[Side]:
    """The run's workers, in this process but for the environments of a pool."""
    task = (
        f"{{name: gymnasium, id: HalfCheetah-v5, images: true, image_size: 128, max_episode_steps: {steps}}}"
    )
    words = (
        f"simulator={task}",
        f"model={{name: mlp_policy, image_features: 16, "
        f"image_channels: [{channels}, {2 * channels}, {2 * channels}]}}",
        f"env_pool.processes={processes}",
        f"train.num_envs={ENVS}",
        f"train.prompts_per_step={ENVS}",
        f"eval.samples={ENVS}",
        "eval.temperature=0",
        "trackers=[]",
    )
    config = compose(Options(algo="reinforce_pp", engine="inline", ranks=1, overrides=words))
    graph = start(config, prepare(config).first)
    torch.set_num_threads(1)  # where the engine would give one rank both cores
    try:
        yield Side(graph, make_source(config))
    finally:
        graph.stop()


def similar(steps: int) -> tuple[int, float]:
    """The size of the policy whose time is nearest to that of physics, and how near."""
    found: list[tuple[float, int, float]] = []
    for channels in CHANNELS:
        with playing(channels, steps) as side:
            ratio = side.policy_over_physics()
        say(f"{channels} channels: the policy takes {ratio:.2f} of the time of physics")
        found.append((abs(np.log(ratio)), channels, ratio))
        if ratio > 1:
            break
    _, channels, ratio = min(found)
    return channels, ratio


def same(ours: Sequence[Experience], theirs: Sequence[Experience]) -> None:
    for mine, other in zip(cast("list[Trajectory]", ours), cast("list[Trajectory]", theirs), strict=True):
        if not (mine.reward == other.reward and np.array_equal(mine.actions, other.actions)):
            raise SystemExit(f"episode {mine.group} differs over processes: {mine.reward} and {other.reward}")


if __name__ == "__main__":
    main()
