"""Which plan a run starts with, and what a resumed one goes through."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.run.planning import HISTORY, prepare, resumed, run_fingerprint
from rlinf_core.schedule.defaults import default_plan, streams
from rlinf_core.schedule.plan import Plan
from rlinf_core.schedule.plan_yaml import plan_to_yaml
from rlinf_core.schedule.profile import Measurement, Profile
from rlinf_core.schedule.profile_yaml import write_profile

TEXT = ("model=hf_lm", "model.preset=char-llama", "data=sort_digits", "reward=exact", "algo=grpo")


def settings(output: Path, *words: str) -> RunConfig:
    return replace(compose(Options(overrides=(*TEXT, "ranks=2", *words))), output=str(output))


def measured(config: RunConfig, path: Path, apart_s: float) -> Path:
    """A profile by which two devices are twice as fast as one, for rollout; training takes `apart_s`."""
    points = [
        Measurement("rollout", 2, 256, 1.0),
        Measurement("rollout", 1, 256, 2.0),
        Measurement("actor", 2, 256, apart_s),
        Measurement("actor", 1, 256, apart_s),
    ]
    write_profile(Profile(tuple(points), fingerprint=run_fingerprint(config)), path)
    return path


def test_auto_starts_collocated_and_tries_the_other_modes(tmp_path: Path) -> None:
    planning = prepare(settings(tmp_path))
    assert planning.first.mode == "collocated"
    assert [plan.mode for plan in planning.trials] == ["disaggregated", "hybrid"]


@pytest.mark.parametrize("mode", ["collocated", "disaggregated", "hybrid"])
def test_a_mode_is_one_plan(tmp_path: Path, mode: str) -> None:
    planning = prepare(settings(tmp_path, f"mode={mode}"))
    assert (planning.first.mode, planning.trials, planning.profile) == (mode, (), None)


def test_one_device_leaves_nothing_to_try(tmp_path: Path) -> None:
    planning = prepare(settings(tmp_path, "ranks=1"))
    assert (planning.first.mode, planning.trials) == ("collocated", ())


def test_a_profile_takes_the_place_of_measuring(tmp_path: Path) -> None:
    config = settings(tmp_path)
    path = measured(config, tmp_path / "given.yaml", apart_s=2.0)
    planning = prepare(settings(tmp_path, f"schedule.profile={path}"))
    assert planning.first.mode == "disaggregated"  # 2 s side by side, and 3 s in turns
    assert (planning.trials, planning.profile is not None) == ((), True)
    named = prepare(settings(tmp_path, f"schedule.profile={path}", "mode=collocated"))
    assert named.first.mode == "collocated"
    assert named.profile is None
    assert named.first.prediction is not None
    assert named.first.prediction.step_s == pytest.approx(3.0, rel=0.01)


def test_a_placement_is_followed_whatever_a_profile_says(tmp_path: Path) -> None:
    config = settings(tmp_path)
    path = measured(config, tmp_path / "given.yaml", apart_s=2.0)
    placed = ("placement.rollout=0", "placement.actor=0-1", f"schedule.profile={path}")
    planning = prepare(settings(tmp_path, *placed))
    assert (planning.first.mode, planning.trials, planning.profile) == ("hybrid", (), None)
    assert planning.first.prediction is not None


def written(output: Path, moves: dict[int, Plan]) -> None:
    lines = [json.dumps({"step": step, "plan": plan_to_yaml(plan)}) for step, plan in moves.items()]
    (output / HISTORY).write_text("\n".join([*lines, '{"step": 9, "pl']))  # it died while it wrote


def test_a_resumed_run_goes_on_by_the_plan_it_had_and_through_the_changes_that_followed(
    tmp_path: Path,
) -> None:
    config = settings(tmp_path)
    planning = prepare(config)
    apart, mixed = planning.trials
    written(tmp_path, {3: apart, 6: mixed, 8: planning.first})
    again = resumed(planning, config, 4)
    assert again.first == apart
    assert [(move.step, move.plan.mode) for move in again.replay] == [(6, "hybrid"), (8, "collocated")]
    assert len(again.trials) == 2
    measured(config, tmp_path / "profile.yaml", apart_s=2.0)
    assert resumed(planning, config, 4).trials == ()
    assert resumed(planning, config, 4).profile is not None


@pytest.mark.parametrize("words", [("ranks=1",), ("mode=collocated",), ("ranks=2", "mode=hybrid")])
def test_other_devices_or_a_named_mode_start_anew(tmp_path: Path, words: tuple[str, ...]) -> None:
    written(tmp_path, {3: prepare(settings(tmp_path)).trials[0]})
    config = settings(tmp_path, *words)
    assert resumed(prepare(config), config, 4) == prepare(config)


def test_samples_travel_in_parts_only_to_devices_of_their_own(tmp_path: Path) -> None:
    graph = prepare(settings(tmp_path)).graph
    assert streams(graph, (0,), (1,))
    assert not streams(graph, (0, 1), (1,))
    several = prepare(settings(tmp_path, "train.mini_batches=2")).graph
    assert not streams(several, (0,), (1,))
    assert default_plan(several, 2, "disaggregated").assignments["rollout"].chunk == 0
