"""Every algorithm trains to the same weights, however its batches are cut, padded, spread and timed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rlinf_core.api import HostSpec
from rlinf_core.builtin.engines.config import LocalConfig
from rlinf_core.builtin.engines.local import LocalEngine
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.run.compose import make_flow, make_source
from rlinf_core.run.crew import Crew, Hosts
from rlinf_core.run.graph import make_graph
from rlinf_core.schedule.defaults import default_plan
from rlinf_core.schedule.plan import Mode

sys.path.insert(0, str(Path(__file__).parent))
from trained_weights import REWARD, Weights, difference, published

STEPS = 2
BASE = (
    "model=hf_lm",
    "model.preset=char-llama",
    "data=sort_digits",
    "sampling.max_new_tokens=8",
    "trackers=[]",
    "train.samples_per_step=24",
    f"train.steps={STEPS}",
    "optimizer.lr=0.1",
    "optimizer.eps=1",  # so large that steps follow the size of the gradient, not its sign alone
    "optimizer.grad_clip=0",
    "reward_pool.workers=0",
)
GROUPS = ("algo.group_size=4",)
ALGORITHMS: Mapping[str, Sequence[str]] = {
    "grpo": ("algo=grpo", *GROUPS),
    "grpo with a KL and entropy": ("algo=grpo", *GROUPS, "algo.kl_coef=0.1", "algo.entropy_coef=0.01"),
    "grpo with a sum over tokens": ("algo=grpo", *GROUPS, "algo.loss_aggregation=token-sum"),
    "dr_grpo": ("algo=dr_grpo", *GROUPS),
    "gspo": ("algo=gspo", *GROUPS, "train.mini_batches=2"),
    "rloo": ("algo=rloo", *GROUPS),
    "cispo": ("algo=cispo", *GROUPS, "train.mini_batches=3"),
    "remax": ("algo=remax",),
    "dapo": ("algo=dapo", *GROUPS, "algo.overlong_buffer=4"),
    "ppo": ("algo=ppo", "algo.critic=head", "train.mini_batches=2", "train.update_epochs=2"),
    "ppo with a critic of its own": ("algo=ppo", "algo.critic=own", "algo.kl_coef=0.1"),
    "reinforce_pp": ("algo=reinforce_pp", "algo.kl_coef=0.1"),
    "reinforce_pp with groups": (
        "algo=reinforce_pp",
        *GROUPS,
        "algo.baseline=group",
        "algo.kl_coef=0.1",
    ),
}
VARIANTS: Mapping[str, Sequence[str]] = {
    "small micro-batches": ("train.micro_batch_tokens=40",),
    "padded rows": ("model.packing=never", "train.micro_batch_tokens=100"),
}


@dataclass
class Machine:
    """Processes that live as long as this module's tests."""

    engine: LocalEngine
    hosts: Hosts
    folder: Path

    def trained(self, words: Sequence[str], devices: int = 1, mode: Mode = "collocated") -> Weights:
        """The policy's weights after two steps."""
        reward = f"reward={self.folder / 'reward.py'}:letters"
        config = replace(compose(Options(overrides=(*BASE, reward, *words))), output=str(self.folder))
        crew = Crew(config, self.engine, Hosts(self.hosts.devices[:devices], self.hosts.others))
        crew.place(default_plan(make_graph(config), devices, mode))
        try:
            return self._train(config, crew)
        finally:
            for group in reversed(crew.groups.values()):
                group.drop().wait()

    @staticmethod
    def _train(config: RunConfig, crew: Crew) -> Weights:
        source, flow = make_source(config), make_flow(crew)
        for step in range(STEPS):
            assert flow.step(source.train(step), step).rows
        return published(crew.groups["actor"])


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("invariance")
    (folder / "reward.py").write_text(REWARD)
    engine = LocalEngine(LocalConfig())
    try:
        started = engine.start([HostSpec("device0"), HostSpec("device1"), HostSpec("reward")])
        yield Machine(engine, Hosts(started[:2], {"reward": started[2]}), folder)
    finally:
        engine.stop()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_cuts_padding_ranks_and_modes_leave_the_weights_as_they_are(machine: Machine, name: str) -> None:
    words = ALGORITHMS[name]
    plain = machine.trained(words)
    assert difference(plain, machine.trained((*words, "optimizer.lr=0"))) > 1e-3
    found = {variant: machine.trained((*words, *more)) for variant, more in VARIANTS.items()}
    for mode in ("collocated", "disaggregated", "hybrid"):
        found[mode] = machine.trained(words, devices=2, mode=mode)
    differences = {variant: difference(weights, plain) for variant, weights in found.items()}
    assert max(differences.values()) < 1e-5, differences
