"""Which plan a run starts with, and what a resumed one goes through."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.config.schema import RunConfig
from rlinf_core.errors import ConfigError
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


SPLIT = ("model.preset=tiny-qwen2", "backend=megatron", "backend.tensor_parallel=2")


def counts(plan: Plan) -> dict[str, int]:
    return {name: len(part.devices) for name, part in plan.assignments.items()}


@pytest.mark.parametrize(
    ("ranks", "mode", "expected"),
    [
        (2, "collocated", {"rollout": 2, "actor": 2}),
        (5, "collocated", {"rollout": 4, "actor": 4}),
        (3, "disaggregated", {"rollout": 1, "actor": 2}),
        (7, "disaggregated", {"rollout": 5, "actor": 2}),
        (8, "disaggregated", {"rollout": 4, "actor": 4}),
        (5, "hybrid", {"rollout": 2, "actor": 4}),
    ],
)
def test_what_trains_has_whole_models(
    tmp_path: Path, ranks: int, mode: str, expected: dict[str, int]
) -> None:
    """Two ranks hold one."""
    plan = prepare(settings(tmp_path, *SPLIT, f"ranks={ranks}", f"mode={mode}")).first
    assert (counts(plan), plan.mode) == (expected, mode)
    assert plan.assignments["actor"].model_parallel == 2


def test_modes_that_have_no_room_for_a_whole_model_are_not_tried(tmp_path: Path) -> None:
    planning = prepare(settings(tmp_path, *SPLIT))
    assert [planning.first.mode, *(plan.mode for plan in planning.trials)] == ["collocated", "hybrid"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("ranks=1",),
            "one model of actor lies on 2 ranks, so that collocated needs 2 devices or more; this",
        ),
        (("mode=disaggregated",), "disaggregated needs 3 devices or more; this run has 2. Set ranks=3"),
        (
            ("placement={rollout: 0, actor: 1}",),
            r"placement.actor: .* 2 ranks .* do not divide its 1 devices",
        ),
    ],
)
def test_devices_that_hold_no_whole_model_are_named_before_the_start(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(settings(tmp_path, *SPLIT, *words))


def test_plans_by_a_profile_have_whole_models(tmp_path: Path) -> None:
    """On five devices training would be fastest on an odd number."""
    points = [Measurement("rollout", 1, 256, 1.0), Measurement("actor", 2, 256, 4.0, model_parallel=2)]
    config = settings(tmp_path, *SPLIT, "ranks=5")
    profile = Profile(tuple(points), fingerprint=run_fingerprint(config))
    plans = prepare(config).ranked(profile)
    assert len(plans) > 1
    assert {len(plan.assignments["actor"].devices) % 2 for plan in plans} == {0}
    assert {plan.assignments["actor"].model_parallel for plan in plans} == {2}


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
