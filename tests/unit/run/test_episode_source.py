"""Requests for episodes: shared initial states within a group, distinct draws, nothing to remember."""

from __future__ import annotations

from rlinf_core.config.schema import Component, EvalConfig, RunConfig, TrainConfig
from rlinf_core.plugins import NoConfig
from rlinf_core.run.source import EpisodeSource
from rlinf_core.types import EpisodeRequest

BLANK = Component("", "", NoConfig())


def source(seed: int = 0) -> EpisodeSource:
    config = RunConfig(
        BLANK,
        BLANK,
        BLANK,
        BLANK,
        simulator=BLANK,
        seed=seed,
        train=TrainConfig(prompts_per_step=3),
        eval=EvalConfig(samples=4),
    )
    return EpisodeSource(config, group_size=5)


def flat(chunks: object) -> list[EpisodeRequest]:
    return [request for chunk in chunks for request in chunk]  # type: ignore[attr-defined]


def test_a_group_shares_its_initial_state_and_each_episode_has_draws_of_its_own() -> None:
    groups = list(source().train(2).first())
    assert [len(group) for group in groups] == [5, 5, 5]
    assert [group[0].group for group in groups] == [6, 7, 8]
    states = [{request.initial_state for request in group} for group in groups]
    assert all(len(group_states) == 1 for group_states in states)
    assert len(set.union(*states)) == 3
    assert len({request.seed for request in flat(groups)}) == 15
    assert all(0 <= request.initial_state < 2**31 for request in flat(groups))


def test_a_step_asks_for_the_same_whenever_it_is_asked_and_another_step_for_something_else() -> None:
    one = source()
    flat(one.train(0).first())
    assert flat(one.train(4).first()) == flat(source().train(4).first())
    assert flat(one.train(4).first()) != flat(one.train(5).first())
    assert flat(one.train(4).first()) != flat(source(seed=1).train(4).first())


def test_every_evaluation_asks_for_the_same_states_which_training_does_not_use() -> None:
    asked = flat(source().eval())
    assert [(request.group, request.replica) for request in asked] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert asked == flat(source().eval())
    drawn = [request for step in range(20) for request in flat(source().train(step).first())]
    trained = {request.initial_state for request in drawn}
    assert not trained & {request.initial_state for request in asked}
