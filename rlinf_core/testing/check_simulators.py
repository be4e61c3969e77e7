"""Conformance checks of simulators. Axes: N environments, C actions of a chunk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.api import Observation, Space, Transition
from rlinf_core.errors import ConfigError
from rlinf_core.testing.subject import CheckSkipped, Subject, expect

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlinf_core.api import Simulator

ENVS = 3
SEEDS = [11, 12, 13]
LONGEST = 2000  # steps a check is willing to wait for a time limit
RESETS = 334  # of three environments: over a thousand episodes
GROWTH = 32 * 2**20  # bytes of resident memory that allocators may take


def check_simulators_spaces(subject: Subject) -> None:
    """Observations have the number of environments, shapes and types that the spaces say."""
    with _simulator(subject) as simulator:
        for name in ("num_envs", "action_space", "observation_space", "max_episode_steps"):
            expect(hasattr(simulator, name), f"{name} is not set; call super().__init__, and set it there")
        expect(isinstance(simulator.action_space, Space), "action_space must be a Space, set in __init__")
        expect(simulator.max_episode_steps > 0, "max_episode_steps must be a positive number")
        first = simulator.reset(SEEDS)
        expect(isinstance(first, Observation), f"reset returns {type(first).__name__}; return an Observation")
        shown = _parts(first)
        expect(
            set(shown) == set(simulator.observation_space),
            f"reset shows {sorted(shown)}, observation_space says {sorted(simulator.observation_space)}",
        )
        for name, value in shown.items():
            expected = (ENVS, *simulator.observation_space[name].shape)
            expect(value.shape == expected, f"{name} has shape {value.shape}, by its space {expected}")
            kind = np.uint8 if name.startswith("images/") else np.float32
            expect(value.dtype == kind, f"{name} is {value.dtype}; make it {np.dtype(kind)}")
            expect(np.isfinite(value).all(), f"{name} is not finite after reset")


def check_simulators_transition(subject: Subject) -> None:
    """A transition has [N, C] arrays of the right types and a success per environment."""
    with _simulator(subject) as simulator:
        simulator.reset(SEEDS)
        outcome = simulator.step(_actions(simulator, ENVS, 2))
        told = f"step returns {type(outcome).__name__}; return a Transition"
        expect(isinstance(outcome, Transition), told)
        for name, dtype in (
            ("rewards_NC", np.float32),
            ("terminated_NC", np.bool_),
            ("truncated_NC", np.bool_),
            ("executed_NC", np.bool_),
        ):
            value = getattr(outcome, name)
            expect(
                value.shape == (ENVS, 2), f"{name} has shape {value.shape}; it must be [N, C] = {(ENVS, 2)}"
            )
            expect(value.dtype == dtype, f"{name} is {value.dtype}; make it {np.dtype(dtype)}")
        expect(outcome.success_N.shape == (ENVS,), "success_N must have one entry per environment")
        expect(np.isfinite(outcome.rewards_NC).all(), "a reward is not finite")
        for name, shown in _parts(outcome.observation).items():
            expect(np.isfinite(shown).all(), f"{name} is not finite after a step; end the episode before")


def check_simulators_seeding(subject: Subject) -> None:
    """Equal seeds give equal episodes, however many environments run beside one."""
    with _simulator(subject) as first, _simulator(subject) as second, _simulator(subject, 1) as alone:
        shown = [_parts(first.reset(SEEDS)), _parts(second.reset(SEEDS)), _parts(alone.reset(SEEDS[1:2]))]
        actions = _actions(first, ENVS, 1)
        outcomes = [first.step(actions), second.step(actions), alone.step(actions[1:2])]
        for before, outcome in zip(shown, outcomes, strict=True):
            before |= {f"{name} after a step": value for name, value in _parts(outcome.observation).items()}
            before["reward"] = outcome.rewards_NC
        for name, value in shown[0].items():
            expect(np.array_equal(value, shown[1][name]), f"{name} differs between two runs with equal seeds")
            expect(
                np.array_equal(value[1:2], shown[2][name]),
                f"{name} of a seed depends on the environments beside it; seed each by its own",
            )
        again = _parts(first.reset(SEEDS))
        for name, value in again.items():
            expect(
                np.array_equal(value, shown[0][name]), f"{name} after a second reset with equal seeds differs"
            )


def check_simulators_chunks(subject: Subject) -> None:
    """A chunk of actions does what its actions do one by one."""
    with _simulator(subject) as chunked, _simulator(subject) as single:
        chunked.reset(SEEDS)
        single.reset(SEEDS)
        actions = _actions(chunked, ENVS, 3)
        whole = chunked.step(actions)
        parts = [single.step(actions[:, i : i + 1]) for i in range(3)]
        rewards_NC = np.concatenate([part.rewards_NC for part in parts], axis=1)
        going_N = whole.executed_NC.all(1) & ~_ended(whole)
        expect(
            np.allclose(whole.rewards_NC[going_N], rewards_NC[going_N], atol=1e-6),
            "rewards of a chunk differ from those of its actions one by one",
        )
        last = _parts(parts[-1].observation)
        for name, value in _parts(whole.observation).items():
            expect(
                np.allclose(value[going_N], last[name][going_N], atol=1e-5),
                f"{name} after a chunk differs from that after its actions one by one",
            )


def check_simulators_ends(subject: Subject) -> None:
    """Episodes end by the time limit at the latest, show their last observation and start again."""
    with _simulator(subject) as simulator:
        limit = simulator.max_episode_steps
        if limit > LONGEST:
            raise CheckSkipped(f"max_episode_steps is {limit}; set a smaller one in `example` of the spec")
        simulator.reset(SEEDS)
        waiting_N = np.ones(ENVS, dtype=bool)
        for _ in range(limit):
            outcome = simulator.step(_actions(simulator, ENVS, 1))
            both = outcome.terminated_NC & outcome.truncated_NC
            expect(not both.any(), "an episode is terminated and truncated at once; termination wins")
            ended_N = _ended(outcome)
            if ended_N.any():
                _check_final(outcome, ended_N)
            waiting_N &= ~ended_N
        expect(
            not waiting_N.any(),
            f"an episode runs on after max_episode_steps = {limit}; end it with truncated_NC",
        )


def check_simulators_unexecuted_actions(subject: Subject) -> None:
    """Actions of a chunk after the end of an episode are not executed and have no reward."""
    with _simulator(subject) as simulator:
        length = simulator.max_episode_steps + 2
        if length > LONGEST:
            raise CheckSkipped("max_episode_steps is large; set a smaller one in `example` of the spec")
        simulator.reset(SEEDS)
        outcome = simulator.step(_actions(simulator, ENVS, length))
        ends_NC = outcome.terminated_NC | outcome.truncated_NC
        expect(
            (ends_NC.sum(1) == 1).all(), "a chunk holds more than one end of an episode, or none at its limit"
        )
        after_NC = np.cumsum(ends_NC, axis=1) - ends_NC > 0
        expect(
            (outcome.executed_NC == ~after_NC).all(),
            "executed_NC must be True up to the action that ends the episode, and False after it",
        )
        expect(not outcome.rewards_NC[after_NC].any(), "an action that was not executed has a reward")


def check_simulators_restart(subject: Subject) -> None:
    """An environment that is started alone plays as after `reset`, leaves the others as they are, and rests
    when its episode has ended."""
    with _simulator(subject) as simulator, _simulator(subject) as other:
        if not simulator.restarts:
            raise CheckSkipped("the simulator does not restart single environments")
        if simulator.max_episode_steps > LONGEST:
            raise CheckSkipped("max_episode_steps is large; set a smaller one in `example` of the spec")
        simulator.auto_reset = False
        whole = _parts(other.reset(SEEDS))
        shown = _parts(simulator.restart({2: SEEDS[2]}))
        for name, value in shown.items():
            expect(np.array_equal(value[2], whole[name][2]), f"{name} after restart differs from after reset")
        actions = _actions(simulator, ENVS, 1)
        outcome = simulator.step(actions)
        expect(not outcome.executed_NC[:2].any(), "an environment that rests has executed an action")
        expect(not outcome.rewards_NC[:2].any(), "an environment that rests is paid")
        after, expected = _parts(outcome.observation), _parts(other.step(actions).observation)
        again = _parts(simulator.restart({0: SEEDS[0]}))
        for name, value in again.items():
            expect(np.array_equal(after[name][2], expected[name][2]), f"{name} differs from that after reset")
            expect(np.array_equal(value[2], after[name][2]), f"restart of one changes {name} of another")
            expect(np.array_equal(value[0], whole[name][0]), f"{name} after restart differs from after reset")
        _play_to_the_end(simulator)


def check_simulators_state(subject: Subject) -> None:
    """A saved state goes on as before, in the simulator it is of and in a new one."""
    _needs(subject, "save_state", "the simulator does not save its state")
    with _simulator(subject) as simulator, _simulator(subject) as other:
        simulator.reset(SEEDS)
        shown = _parts(simulator.step(_actions(simulator, ENVS, 2)).observation)
        state = simulator.save_state()
        expected = _going_on(simulator)
        other.reset([seed + 1 for seed in SEEDS])
        for which, each in (("the simulator itself", simulator), ("another simulator", other)):
            _expect_equal(
                _parts(each.load_state(state)), shown, f"load_state of {which} shows something else"
            )
            _expect_equal(_going_on(each), expected, f"after load_state, {which} goes on differently")


def check_simulators_offload(subject: Subject) -> None:
    """Episodes go on after offload and onload as if nothing had been."""
    _needs(subject, "offload", "the simulator does not offload")
    with _simulator(subject) as simulator, _simulator(subject) as other:
        for each in (simulator, other):
            each.reset(SEEDS)
        simulator.offload()
        simulator.onload()
        _expect_equal(_going_on(simulator), _going_on(other), "after offload and onload, episodes differ")


def check_simulators_render(subject: Subject) -> None:
    """Pictures for people are of the environments asked for, and looking changes nothing."""
    _needs(subject, "render", "the simulator does not render")
    with _simulator(subject) as seen, _simulator(subject) as unseen:
        seen.reset(SEEDS)
        unseen.reset(SEEDS)
        try:
            pictures = seen.render()
        except ConfigError as err:  # nothing to draw with on this machine
            raise CheckSkipped(str(err)) from err
        expect(
            pictures.dtype == np.uint8 and pictures.shape[::3] == (ENVS, 3) and pictures.ndim == 4,
            f"render gives {pictures.dtype} of shape {pictures.shape}; make it uint8 [N, H, W, 3]",
        )
        expect(
            np.array_equal(seen.render_some([2, 0]), pictures[[2, 0]]),
            "render_some([2, 0]) is not what render shows of environments 2 and 0",
        )
        _expect_equal(_going_on(seen), _going_on(unseen), "render changes what comes after it")


def check_simulators_expert(subject: Subject) -> None:
    """The expert's actions lie in their space, follow from the state alone and change nothing."""
    _needs(subject, "expert", "the simulator has no expert")
    with _simulator(subject) as simulator, _simulator(subject) as other:
        for each in (simulator, other):
            each.reset(SEEDS)
        space = simulator.action_space
        for _ in range(5):
            actions = simulator.expert([1.0] * ENVS)
            expect(
                actions.shape == (ENVS, *space.shape),
                f"expert gives actions of shape {actions.shape}, the space says {(ENVS, *space.shape)}",
            )
            expect(np.array_equal(actions, simulator.expert([1.0] * ENVS)), "expert differs when asked again")
            if space.n is None:
                expect((actions >= space.low).all() & (actions <= space.high).all(), "an action is too large")
            outcomes = [each.step(actions[:, None]) for each in (simulator, other)]
            shown, expected = (_parts(outcome.observation) for outcome in outcomes)
            _expect_equal(shown, expected, "asking the expert changes what a step does")


def check_simulators_memory(subject: Subject) -> None:
    """Memory is flat over more than a thousand episodes."""
    with _simulator(subject) as simulator:
        _reset_often(simulator, RESETS // 4)
        before = _resident_bytes(simulator)
        _reset_often(simulator, RESETS)
        grown = _resident_bytes(simulator) - before
        expect(
            grown < GROWTH, f"{RESETS} resets grew memory by {grown / 2**20:.0f} MiB; free the old episode"
        )


def check_simulators_close(subject: Subject) -> None:
    """`close` may be called twice."""
    simulator = subject.build(ENVS, 0)
    simulator.reset(SEEDS)
    simulator.close()
    simulator.close()


def _play_to_the_end(simulator: Simulator) -> None:
    """Two of three environments run."""
    for _ in range(simulator.max_episode_steps):
        outcome = simulator.step(_actions(simulator, ENVS, 1))
        ended_N = _ended(outcome)
        expect(not ended_N[1], "an environment that was never started has ended")
        final = _parts(outcome.final_observation) if outcome.final_observation is not None else {}
        for name, value in _parts(outcome.observation).items():
            same = not ended_N.any() or np.array_equal(final.get(name, value)[ended_N], value[ended_N])
            expect(same, f"without automatic reset, {name} of an ended episode is not what was seen last")
    outcome = simulator.step(_actions(simulator, ENVS, 1))
    expect(not outcome.executed_NC.any(), "an environment goes on after the end, though auto_reset is False")


def _needs(subject: Subject, capability: str, reason: str) -> None:
    if not getattr(subject.spec.provides, capability):  # type: ignore[attr-defined]
        raise CheckSkipped(reason)


def _going_on(simulator: Simulator) -> dict[str, NDArray[Any]]:
    outcome = simulator.step(_actions(simulator, ENVS, 3))
    return _parts(outcome.observation) | {"rewards": outcome.rewards_NC, "ends": outcome.terminated_NC}


def _expect_equal(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]], message: str) -> None:
    for name, value in expected.items():
        expect(np.array_equal(found[name], value), f"{message} ({name})")


@contextlib.contextmanager
def _simulator(subject: Subject, envs: int = ENVS) -> Iterator[Simulator]:
    simulator = subject.build(envs, 0)
    try:
        yield simulator
    finally:
        simulator.close()


def _actions(simulator: Simulator, envs: int, length: int) -> NDArray[Any]:
    """The same random actions at every call; the first environments' do not depend on their number."""
    space = simulator.action_space
    random = np.random.default_rng(5)
    if space.n is not None:
        return random.integers(space.n, size=(envs, length))
    return random.uniform(space.low, space.high, size=(envs, length, *space.shape)).astype(np.float32)


def _parts(observation: Observation) -> dict[str, NDArray[Any]]:
    parts: dict[str, NDArray[Any]] = {} if observation.state is None else {"state": observation.state.copy()}
    return parts | {f"images/{camera}": image.copy() for camera, image in observation.images.items()}


def _ended(outcome: Transition) -> NDArray[np.bool_]:
    ended: NDArray[np.bool_] = np.any(outcome.terminated_NC | outcome.truncated_NC, axis=1)
    return ended


def _check_final(outcome: Transition, ended_N: NDArray[np.bool_]) -> None:
    final = outcome.final_observation
    if final is None:
        expect(False, "an episode ended without final_observation; give what was seen before the reset")
        return
    shown, last = _parts(outcome.observation), _parts(final)
    same = all(np.array_equal(shown[name][ended_N], last[name][ended_N]) for name in shown)
    expect(not same, "after an end `observation` equals `final_observation`; reset, and show the new episode")


def _reset_often(simulator: Simulator, times: int) -> None:
    for i in range(times):
        simulator.reset([i * ENVS + n for n in range(ENVS)])


def _resident_bytes(simulator: Simulator) -> int:
    """Of this process and of those that the simulator runs in."""
    files = [Path(f"/proc/{number}/status") for number in ("self", *simulator.process_ids())]
    if not files[0].exists():
        raise CheckSkipped("this system does not tell a process's memory")
    lines = [line for file in files for line in file.read_text().splitlines() if line.startswith("VmRSS")]
    return sum(int(line.split()[1]) for line in lines) * 1024
