"""Which faults happen in which runs: every place with all that can happen there, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from campaign import Mode
from rlinf_faults.strike import Fault

TEXT = (
    "--algo=grpo",
    "--backend=faulty",
    "--rollout=faulty",
    "--model=faulty",
    "--data=faulty",
    "--reward=faulty",
    "trackers=[]",
    "train.prompts_per_step=4",
    "algo.group_size=4",
    "sampling.max_new_tokens=4",
    "eval.samples=4",
    "eval.every=0",
    "checkpoint.every=1",
    "checkpoint.export=false",
    "optimizer.lr=1e-2",
    "reward_pool.timeout_s=2",
)
EMBODIED = (
    "--algo=grpo",
    "--backend=faulty",
    "--model=faulty_policy",
    "--simulator=faulty",
    "trackers=[]",
    "train.prompts_per_step=3",
    "algo.group_size=3",
    "train.num_envs=4",
    "eval.samples=3",
    "eval.every=0",
    "checkpoint.every=1",
    "checkpoint.export=false",
    "optimizer.lr=1e-2",
)
PROCESSES = ("env_pool.processes=2", "env_pool.timeout_s=3")
INLINE = ("--engine=inline", "--ranks=1")
LOCAL = ("--engine=local", "engine.restarts=50")
APART = (*LOCAL, "--ranks=2", "mode=disaggregated")
TOGETHER = (*LOCAL, "--ranks=1", "mode=collocated")

VISITS = {  # that every step has, at least
    "rollout.generate": 12,
    "rollout.load": 1,
    "actor.weights": 1,
    "actor.accumulate": 1,
    "actor.step": 1,
    "actor.save": 1,
    "actor.saved": 1,
    "reward.score": 1,
    "data.row": 4,
    "simulator.step": 3,
    "simulator.restart": 1,
    "policy.act": 3,
}
ROLLOUT = ("rollout.generate", "rollout.load")
ACTOR = ("actor.weights", "actor.accumulate", "actor.step", "actor.save")
LOST = ("kill", "stop", "corrupt")


@dataclass(frozen=True)
class Kind:
    """A mode, what can happen where in it, and how many trials there are in how many runs."""

    mode: Mode
    places: dict[tuple[str, ...], tuple[str, ...]]
    trials: int
    runs: int
    generated: int = VISITS["rollout.generate"]  # times that a step visits generation, at least

    def campaigns(self) -> Iterator[list[Fault]]:
        """The faults of each run, one a step; all that can happen comes before anything comes again."""
        chance = random.Random(self.mode.name)
        pairs = [(place, what) for places, whats in self.places.items() for place in places for what in whats]
        drawn: list[tuple[str, str]] = []
        while len(drawn) < self.trials:
            drawn += chance.sample(pairs, len(pairs))
        visits = {**VISITS, "rollout.generate": self.generated}
        each = self.trials // self.runs
        for run in range(self.runs):
            chosen = drawn[run * each : (run + 1) * each]
            yield [
                Fault(number, place, 1 + number, chance.randint(1, visits[place]), what)
                for number, (place, what) in enumerate(chosen)
            ]


KINDS = (
    Kind(
        Mode("text, one process", (*TEXT, *INLINE)),
        {
            ("reward.score",): ("raise", "kill", "corrupt", "slow"),
            ROLLOUT: ("raise", "slow"),
            ACTOR: ("raise",),
            ("data.row",): ("raise", "slow"),
        },
        trials=48,
        runs=6,
    ),
    Kind(
        Mode("text, one process, late rewards", (*TEXT, *INLINE), exact=False),
        {("reward.score",): ("stop", "late")},
        trials=12,
        runs=2,
    ),
    Kind(
        Mode("text, full disk", (*TEXT, *INLINE), disk=True),
        {("actor.save",): ("full",)},
        trials=6,
        runs=1,
    ),
    Kind(
        Mode("embodied, one process", (*EMBODIED, *INLINE)),
        {("simulator.step", "simulator.restart", "policy.act", *ACTOR): ("raise",)},
        trials=14,
        runs=2,
    ),
    Kind(
        Mode(
            "embodied, simulators apart", (*EMBODIED, *INLINE, "env_pool.processes=2", "env_pool.timeout_s=3")
        ),
        {("simulator.step", "simulator.restart"): ("raise", "kill", "stop", "corrupt", "slow")},
        trials=40,
        runs=5,
    ),
    Kind(
        Mode("text, disaggregated", (*TEXT, *APART)),
        {ROLLOUT: LOST, ACTOR: LOST},
        trials=24,
        runs=4,
    ),
    Kind(
        Mode("text, disaggregated, rewards in their worker", (*TEXT, *APART, "reward_pool.workers=0")),
        {("reward.score",): LOST},
        trials=12,
        runs=2,
    ),
    Kind(
        Mode("text, rows made ahead", (*TEXT, *APART, "train.max_staleness=1")),
        {ROLLOUT: LOST, ("actor.step", "actor.save"): LOST},
        trials=18,
        runs=3,
        generated=3,  # the step before may have made the rest
    ),
    Kind(
        Mode("text, collocated", (*TEXT, *TOGETHER)),
        {ROLLOUT: LOST, ("actor.step",): LOST},
        trials=10,
        runs=2,
    ),
    Kind(
        Mode("embodied, disaggregated", (*EMBODIED, *APART)),
        {("simulator.step", "simulator.restart", "policy.act"): LOST, ("actor.step",): ("kill",)},
        trials=20,
        runs=4,
    ),
    Kind(
        Mode("embodied, collocated", (*EMBODIED, *TOGETHER)),
        {("simulator.step", "policy.act"): ("kill", "corrupt")},
        trials=4,
        runs=1,
    ),
    Kind(
        Mode("text, driver killed", (*TEXT, *TOGETHER), apart=True),
        {("actor.save", "actor.saved", "actor.step", "rollout.generate"): ("driver",)},
        trials=12,
        runs=2,
    ),
)
SOME = (  # that every test session runs
    (
        KINDS[0].mode,
        [
            Fault(0, "reward.score", 1, 1, "raise"),
            Fault(1, "rollout.generate", 2, 3, "raise"),
            Fault(2, "reward.score", 3, 1, "kill"),
            Fault(3, "data.row", 4, 2, "raise"),
            Fault(4, "reward.score", 5, 1, "corrupt"),
            Fault(5, "actor.save", 6, 1, "raise"),
            Fault(6, "actor.step", 7, 1, "raise"),
        ],
    ),
    (
        KINDS[4].mode,
        [
            Fault(0, "simulator.step", 1, 1, "raise"),
            Fault(1, "simulator.step", 2, 2, "kill"),
            Fault(2, "simulator.restart", 3, 1, "kill"),
            Fault(3, "simulator.step", 4, 2, "corrupt"),
            Fault(4, "simulator.step", 5, 2, "stop"),
        ],
    ),
)
