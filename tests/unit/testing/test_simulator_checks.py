"""The simulator checks find faults planted into the scaffolded simulator."""

from __future__ import annotations

import importlib
import mmap
import pickle
from dataclasses import replace

import numpy as np
import pytest

from rlinf_core.api import Observation, SimulatorCapabilities
from rlinf_core.plugins import Offer, PluginManager
from rlinf_core.testing.checks import run_checks
from rlinf_core.testing.scaffold import scaffold
from rlinf_core.testing.subject import Subject, subject


@pytest.fixture
def sound(tmp_path, monkeypatch) -> Subject:
    made = scaffold("simulators", "planted", tmp_path)
    monkeypatch.syspath_prepend(str(made))
    offer = Offer("planted", made.name, "0.1.0", lambda: importlib.import_module("rlinf_sim_planted.plugin"))
    return subject("simulators", "planted", manager=PluginManager(lambda _: [offer]))


def shared_seed(base):
    class SharedSeed(base):
        def reset(self, seeds):
            return super().reset([seeds[0]] * len(seeds))

    return SharedSeed


def never_truncates(base):
    class NeverTruncates(base):
        def __init__(self, config, num_envs, seed):
            super().__init__(config, num_envs, seed)
            self.max_episode_steps = 3
            self._limit = 10**6

        def step(self, actions):
            self.max_episode_steps, kept = self._limit, self.max_episode_steps
            outcome = super().step(actions)
            self.max_episode_steps = kept
            return outcome

    return NeverTruncates


def both_ends(base):
    class BothEnds(base):
        def step(self, actions):
            outcome = super().step(actions)
            return replace(outcome, terminated_NC=outcome.terminated_NC | outcome.truncated_NC)

    return BothEnds


def claims_all_executed(base):
    class ClaimsAllExecuted(base):
        def step(self, actions):
            outcome = super().step(actions)
            return replace(outcome, executed_NC=np.ones_like(outcome.executed_NC))

    return ClaimsAllExecuted


def shows_the_old_episode(base):
    class ShowsTheOldEpisode(base):
        def step(self, actions):
            outcome = super().step(actions)
            return replace(outcome, observation=outcome.final_observation or outcome.observation)

    return ShowsTheOldEpisode


def leaks(base):
    kept = []

    class Leaks(base):
        def reset(self, seeds):
            pages = mmap.mmap(-1, 2**20)  # new ones, where an allocator would give those that others left
            pages.write(b"1" * 2**20)
            kept.append(pages)
            return super().reset(seeds)

    return Leaks


def first_action_only(base):
    class FirstActionOnly(base):
        def step(self, actions):
            return super().step(np.repeat(actions[:, :1], actions.shape[1], axis=1))

    return FirstActionOnly


def never_rests(base):
    class NeverRests(base):
        restarts = True

        def restart(self, seeds):
            for n, seed in seeds.items():
                self._random_N[n] = np.random.default_rng(seed)
                self._restart(n)
            return self._observation()

    return NeverRests


def loses_its_numbers(base):
    class LosesItsNumbers(base):
        def step(self, actions):
            outcome = super().step(actions)
            return replace(outcome, observation=Observation(state=outcome.observation.state * np.nan))

    return LosesItsNumbers


def steps_as_in_gymnasium(base):
    class StepsAsInGymnasium(base):
        def step(self, actions):
            outcome = super().step(actions)
            return outcome.observation, outcome.rewards_NC, outcome.terminated_NC, outcome.truncated_NC, {}

    return StepsAsInGymnasium


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (loses_its_numbers, "transition"),
        (steps_as_in_gymnasium, "transition"),
        (never_rests, "restart"),
        (shared_seed, "seeding"),
        (never_truncates, "ends"),
        (both_ends, "ends"),
        (claims_all_executed, "unexecuted_actions"),
        (shows_the_old_episode, "ends"),
        (leaks, "memory"),
        (first_action_only, "chunks"),
    ],
)
def test_each_fault_of_a_simulator_is_found(sound, plant, check):
    faulty = Subject(sound.spec, sound.config)
    faulty.__dict__["cls"] = plant(sound.cls)
    failed = {result.name for result in run_checks(faulty) if result.outcome == "failed"}
    assert f"check_simulators_{check}" in failed


def keeps(*names):
    """A simulator that saves these attributes only; it shows what it showed when it was saved."""

    def plant(base):
        class Keeps(base):
            def save_state(self):
                values = {name: getattr(self, name) for name in names}
                return pickle.dumps((values, self._observation()))

            def load_state(self, state):
                values, shown = pickle.loads(state)
                for name, value in values.items():
                    setattr(self, name, value)
                return shown

        return Keeps

    return plant


def starts_over_after_offload(base):
    class StartsOver(keeps("_position_N", "_steps_N", "_random_N")(base)):
        def offload(self):
            self._position_N[:] = 0.0

    return StartsOver


@pytest.mark.parametrize(
    ("plant", "failed"),
    [
        (keeps("_position_N", "_steps_N", "_random_N"), set()),
        (keeps("_steps_N", "_random_N"), {"check_simulators_state"}),
        (lambda base: base, {"check_simulators_state"}),
        (starts_over_after_offload, {"check_simulators_offload"}),
    ],
)
def test_what_a_simulator_says_it_saves_and_frees_is_checked(sound, plant, failed):
    assert {result.name for result in failures(sound, plant, save_state=True, offload=True)} == failed


def failures(sound, plant, **promised):
    """What a simulator fails that promises to provide this."""
    promising = Subject(replace(sound.spec, provides=SimulatorCapabilities(**promised)), sound.config)
    promising.__dict__["cls"] = plant(sound.cls)
    return [result for result in run_checks(promising) if result.outcome == "failed"]


def restless_expert(base):
    class Restless(base):
        def expert(self, speed_N):
            self._position_N += 0.1
            return np.zeros((self.num_envs, *self.action_space.shape), dtype=np.float32)

    return Restless


def wild_expert(base):
    class Wild(base):
        def expert(self, speed_N):
            return np.full((self.num_envs, *self.action_space.shape), 1e3, dtype=np.float32)

    return Wild


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda base: base, "has no expert"),
        (restless_expert, "asking the expert changes what a step does"),
        (wild_expert, "an action is too large"),
    ],
)
def test_an_expert_that_is_promised_is_checked(sound, plant, said):
    (failed,) = failures(sound, plant, expert=True)
    assert failed.name == "check_simulators_expert"
    assert said in failed.message


def drawn_as(kind, moves=0.0, some=slice(None)):
    """Pictures of this type; looking moves what is seen, and those of some environments are these."""

    def plant(base):
        class Drawn(base):
            def render(self):
                self._position_N += moves
                brightness = np.arange(self.num_envs, dtype=kind)
                return np.broadcast_to(brightness[:, None, None, None], (self.num_envs, 4, 6, 3))

            def render_some(self, envs):
                return super().render_some(envs)[some]

        return Drawn

    return plant


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda base: base, "does not render"),
        (drawn_as(np.float32), "render gives float32 of shape (3, 4, 6, 3); make it uint8"),
        (drawn_as(np.uint8, some=slice(None, None, -1)), "is not what render shows of environments 2 and 0"),
        (drawn_as(np.uint8, moves=0.1), "render changes what comes after it"),
    ],
)
def test_pictures_that_are_promised_are_checked(sound, plant, said):
    (failed,) = failures(sound, plant, render=True)
    assert failed.name == "check_simulators_render"
    assert said in failed.message


def test_pictures_as_they_should_be_pass(sound):
    assert failures(sound, drawn_as(np.uint8), render=True) == []


def test_a_simulator_that_says_nothing_is_not_asked(sound):
    skipped = {result.message for result in run_checks(sound) if result.outcome == "skipped"}
    assert skipped == {
        "the simulator does not save its state",
        "the simulator does not offload",
        "the simulator does not restart single environments",
        "the simulator does not render",
        "the simulator has no expert",
    }
