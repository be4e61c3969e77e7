"""One flow in three modes: the same parameters, whatever runs where and in whatever pieces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from rlinf_core.comm.stream import Stream
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.run.compose import RunGraph, make_source, start
from rlinf_core.run.graph import make_graph
from rlinf_core.schedule.defaults import default_plan
from rlinf_core.schedule.plan import Plan

MODES = ("collocated", "disaggregated", "hybrid")
STEPS = 3
REWARD = """
def letters(prompts, responses, answers, metas):
    return [sum(map(str.isdigit, response)) / 8 for response in responses]
"""
TEXT = (
    "model=hf_lm",
    "model.preset=char-llama",
    "data=sort_digits",
    "sampling.max_new_tokens=8",
    "trackers=[]",
    "warm_start.steps=0",
    "train.prompts_per_step=6",
    "train.steps=3",
    "algo.group_size=4",
    "optimizer.lr=1e-4",
    "ranks=2",
)


def settings(output: Path, *words: str) -> RunConfig:
    (output / "reward.py").write_text(REWARD)
    return replace(compose(Options(overrides=words)), output=str(output))


def weights(graph: RunGraph) -> dict[str, torch.Tensor]:
    """The actor's parameters."""
    sent = graph.actor.stage("publish", Stream.of([]), local={}, remote=True, trainable_only=False)
    return {
        name: tensor.detach().clone() for bucket in sent.collect() for name, tensor in bucket.tensors.items()
    }


def trained(config: RunConfig, plan: Plan, then: Plan | None = None) -> dict[str, torch.Tensor]:
    """The parameters after three steps; from the second on by another plan, where one is given."""
    source = make_source(config)
    graph = start(config, plan)
    try:
        for step in range(STEPS):
            if step == 1 and then is not None:
                graph.apply(then)
            rows = graph.flow.step(Stream.of(source.train(step)), step).rows
            assert rows
        return weights(graph)
    finally:
        graph.engine.stop()


def difference(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    """The largest difference of a parameter, relative to the largest entry of its tensor."""
    assert ours.keys() == theirs.keys()
    return max(
        float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp_min(1e-3))
        for name in ours
    )


def test_a_text_flow_learns_the_same_in_every_mode(tmp_path: Path) -> None:
    config = settings(tmp_path, *TEXT, f"reward={tmp_path / 'reward.py'}:letters")
    graph = make_graph(config)
    plans = {mode: default_plan(graph, 2, mode) for mode in MODES}
    assert [plan.mode for plan in plans.values()] == list(MODES)
    assert plans["disaggregated"].assignments["rollout"].chunk == 4
    found = {mode: trained(config, plan) for mode, plan in plans.items()}
    found["moved"] = trained(config, plans["disaggregated"], plans["collocated"])
    for mode in ("disaggregated", "hybrid", "moved"):
        assert difference(found[mode], found["collocated"]) < 1e-5, mode
