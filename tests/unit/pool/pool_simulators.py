"""Simulators that tests of the pool run in other processes; every number can be worked out by hand."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_core.api import Observation, Simulator, Space, Transition
from rlinf_core.errors import ConfigError, PluginError


@dataclass(frozen=True)
class Nested:
    """A part of settings."""

    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class CounterConfig:
    """What of the simulator misbehaves."""

    limit: int = 4
    restarts: bool = True
    refuse: str = ""  # the start, with this text; "die" kills the process
    names: Mapping[str, Any] = field(default_factory=dict)
    nested: Nested = Nested()
    faulty_seed: int = -1  # the second step of its episode fails
    fault: str = ""  # die, raise or hang
    once: str = ""  # not where this file is, and it is written at the fault


class Counter(Simulator):
    """Environment n counts from its seed, by each action's value; its reward is the count, its picture as
    bright. An action of 100 kills the process, 200 raises, 300 hangs, 400 tells of a fault of the user."""

    action_space = Space(shape=(1,), low=-1.0, high=1.0)
    observation_space = {"state": Space(shape=(2,)), "images/eye": Space(shape=(2, 2, 3))}  # noqa: RUF012

    def __init__(self, config: CounterConfig, num_envs: int, seed: int) -> None:
        super().__init__(config, num_envs, seed)
        if config.refuse == "die":
            self.misbehave(100)
        if config.refuse:
            raise ConfigError(config.refuse)
        print("a counter starts", file=sys.stderr)
        self.max_episode_steps = config.limit
        self.restarts = config.restarts
        self.count = np.zeros(num_envs, dtype=np.float32)
        self.age = np.zeros(num_envs, dtype=np.int64)
        self.running = np.zeros(num_envs, dtype=bool)
        self.seeds = np.full(num_envs, -1)

    def reset(self, seeds: Sequence[int]) -> Observation:
        return self.restart(dict(enumerate(seeds)))

    def restart(self, seeds: Mapping[int, int]) -> Observation:
        for n, seed in seeds.items():
            self.count[n], self.age[n], self.running[n] = seed, 0, True
            self.seeds[n] = seed
        return self.shown()

    def step(self, actions: Any) -> Transition:
        shape = actions.shape[:2]
        rewards = np.zeros(shape, dtype=np.float32)
        truncated, executed = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
        for n in np.flatnonzero(self.running):
            for c in range(shape[1]):
                self.misbehave(float(actions[n, c, 0]))
                if self.seeds[n] == self.config.faulty_seed and self.age[n] == 1:
                    self.fail()
                self.count[n] += actions[n, c, 0]
                self.age[n] += 1
                rewards[n, c], executed[n, c] = self.count[n], True
                truncated[n, c] = self.age[n] == self.config.limit
                if truncated[n, c]:
                    break
        ended = truncated.any(1)
        shown = final = self.shown()
        if self.auto_reset:
            self.count[ended], self.age[ended] = 0, 0
            shown = self.shown()
        self.running[ended] = self.auto_reset
        nothing = np.zeros(shape, dtype=bool)
        return Transition(
            shown, rewards, nothing, truncated, executed, nothing.any(1), final if ended.any() else None
        )

    def misbehave(self, action: float) -> None:
        if action == 100:
            print("the counter overflows")
            os.kill(os.getpid(), 9)
        if action == 200:
            raise ValueError("cannot count this")
        if action == 300:
            time.sleep(60)
        if action == 400:
            raise PluginError("counting of 400 is not supported; use 401")

    def fail(self) -> None:
        if self.config.once:
            if Path(self.config.once).exists():
                return
            Path(self.config.once).touch()
        self.misbehave({"die": 100.0, "raise": 200.0, "hang": 300.0}.get(self.config.fault, 0.0))

    def shown(self) -> Observation:
        state = np.stack([self.count, self.age.astype(np.float32)], axis=1)
        bright = np.broadcast_to(self.count[:, None, None, None], (self.num_envs, 2, 2, 3))
        texts = [f"count from {n:.0f}" for n in self.count]
        return Observation(state, {"eye": bright.astype(np.uint8)}, texts)

    def tasks(self) -> list[str]:
        return ["counting", str(self.config.nested.sizes), str(dict(self.config.names))]

    def render(self) -> Any:
        self.misbehave(float(self.count.max()))
        return self.shown().images["eye"]

    def save_state(self) -> bytes:
        return np.concatenate([self.count, self.age, self.running]).astype(np.float64).tobytes()

    def load_state(self, state: bytes) -> Observation:
        count, age, running = np.frombuffer(state).reshape(3, self.num_envs)
        self.count, self.age, self.running = count.astype("f4"), age.astype("i8"), running.astype(bool)
        return self.shown()


class Odd(Counter):
    """Its space is of numbers that JSON does not know."""

    action_space = Space(shape=(1,), low=np.float32(-1.0))  # type: ignore[arg-type]
