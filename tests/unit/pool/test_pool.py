"""A simulator over several processes: the same numbers as in this one, and no death that goes unnoticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_core.errors import ConfigError, PluginError
from rlinf_core.isolation.program import Program
from rlinf_core.isolation.values import decode, encode
from rlinf_core.plugins import NoConfig
from rlinf_core.pool.part import Lives
from rlinf_core.pool.simulator import SimulatorPool

sys.path.insert(0, str(Path(__file__).parent))
from pool_simulators import Counter, CounterConfig, Nested

Make = Callable[..., SimulatorPool]
SEEDS = [10, 20, 30, 40, 50]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Pools of counters that are closed at the end."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what they print arrives without it
    made: list[SimulatorPool] = []

    def build(config: CounterConfig = CounterConfig(), envs: int = 5, **options: Any) -> SimulatorPool:  # noqa: B008
        usual = {"target": "pool_simulators:Counter", "processes": 2, "program": Program.own()}
        made.append(SimulatorPool(config, envs, 0, name="counter", **{**usual, **options}))
        return made[-1]

    yield build
    for pool in made:
        pool.close()


def actions(*each: float, chunk: int = 1) -> Any:
    return np.repeat(np.array(each, dtype=np.float32)[:, None, None], chunk, axis=1)


def test_a_pool_says_and_does_what_its_simulator_does(make: Make) -> None:
    pool, own = make(), Counter(CounterConfig(), 5, 0)
    assert pool.action_space == own.action_space
    assert pool.observation_space == own.observation_space
    assert (pool.max_episode_steps, pool.restarts) == (4, True)
    expected = own.reset(SEEDS)
    shown = pool.reset(SEEDS)
    assert shown.instruction == expected.instruction
    for chunk in (1, 3, 2, 7):  # 3 goes up to an end, 7 beyond one
        told = actions(0.5, -0.5, 1, 0, 0.25, chunk=chunk)
        ours, theirs = pool.step(told), own.step(told)
        for name in ("rewards_NC", "terminated_NC", "truncated_NC", "executed_NC", "success_N"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
        assert np.array_equal(ours.observation.state, theirs.observation.state)
        assert np.array_equal(ours.observation.images["eye"], theirs.observation.images["eye"])
        assert ours.observation.instruction == theirs.observation.instruction
        ended = theirs.truncated_NC.any(1)
        assert (ours.final_observation is None) == (not ended.any())
        if ours.final_observation and theirs.final_observation:
            assert np.array_equal(ours.final_observation.state[ended], theirs.final_observation.state[ended])
            assert ours.final_observation.instruction == theirs.final_observation.instruction
        assert ours.lost_N is None
    assert pool.lives.used == 0


def test_environments_rest_and_start_alone_also_over_processes(make: Make) -> None:
    pool = make()
    pool.auto_reset = False
    shown = pool.restart({1: 7, 4: 9})
    assert shown.state is not None
    assert shown.state[:, 0].tolist() == [0, 7, 0, 0, 9]
    outcome = pool.step(actions(1, 1, 1, 1, 1, chunk=4))
    assert outcome.rewards_NC.tolist() == [[0] * 4, [8, 9, 10, 11], [0] * 4, [0] * 4, [10, 11, 12, 13]]
    assert outcome.final_observation is not None
    assert outcome.observation.state[:, 0].tolist() == [0, 11, 0, 0, 13]
    assert not pool.step(actions(1, 1, 1, 1, 1)).executed_NC.any()


def test_what_is_begun_is_what_restarting_does(make: Make) -> None:
    pool = make()
    pool.auto_reset = False
    pool.begin({1: 7, 4: 9})
    shown = pool.begun()
    assert shown.state is not None
    assert shown.state[:, 0].tolist() == [0, 7, 0, 0, 9]
    pool.restarts = False
    pool.begin(dict(enumerate(SEEDS)))
    begun, reset = pool.begun().state, pool.reset(SEEDS).state
    assert begun is not None
    assert np.array_equal(begun, reset)


def test_calls_reach_every_process(make: Make) -> None:
    pool = make(CounterConfig(names={"a": [1, (2, 3)]}, nested=Nested((5,))))
    pool.reset(SEEDS)
    assert pool.tasks() == ["counting", "(5,)", "{'a': [1, (2, 3)]}"]
    assert pool.render()[:, 0, 0, 0].tolist() == SEEDS
    state = pool.save_state()
    pool.step(actions(1, 1, 1, 1, 1))
    assert pool.load_state(state).state[:, 0].tolist() == SEEDS
    assert make().load_state(state).instruction == [f"count from {seed}" for seed in SEEDS]
    assert pool.step(actions(1, 1, 1, 1, 1)).rewards_NC[:, 0].tolist() == [11, 21, 31, 41, 51]
    with pytest.raises(PluginError, match=r"not of 5 environments over 1 processes"):
        make(processes=1).load_state(state)
    with pytest.raises(PluginError, match="this state is not of"):
        pool.load_state(b"something else")


def test_a_killed_process_loses_its_own_episodes_alone(make: Make, caplog: Any, capfd: Any) -> None:
    pool = make()
    pool.reset(SEEDS)
    first, second = pool.process_ids()
    outcome = pool.step(actions(1, 1, 1, 100, 1))
    assert outcome.lost_N is not None
    assert outcome.lost_N.tolist() == [False, False, False, True, True]
    assert outcome.rewards_NC[:, 0].tolist() == [11, 21, 31, 0, 0]
    assert not outcome.executed_NC[3:].any()
    warning = caplog.messages[0]
    assert f"the process of environments 3 to 4 (pid {second}) died of SIGKILL" in warning
    assert "(1 of 50)" in warning
    assert "the counter overflows" in warning
    assert "[counter 3-4] the counter overflows" in capfd.readouterr().err
    again = pool.step(actions(1, 1, 1, 1, 1))  # the others go on; the lost ones rest and are lost only once
    assert again.lost_N is None
    assert again.rewards_NC[:, 0].tolist() == [12, 22, 32, 0, 0]
    shown = pool.restart({3: 40, 4: 50})
    assert shown.state[:, 0].tolist() == [12, 22, 32, 40, 50]
    assert pool.step(actions(1, 1, 1, 1, 1)).rewards_NC[:, 0].tolist() == [13, 23, 33, 41, 51]
    assert pool.process_ids()[0] == first


def test_a_process_that_dies_between_steps_is_noticed_at_the_next(make: Make) -> None:
    pool = make()
    pool.reset(SEEDS)
    os.kill(pool.process_ids()[0], signal.SIGKILL)
    outcome = pool.step(actions(1, 1, 1, 1, 1))
    assert outcome.lost_N is not None
    assert outcome.lost_N.tolist() == [True, True, True, False, False]
    pool.reset(SEEDS)
    pids = pool.process_ids()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until_ended(pids)
    assert pool.reset(SEEDS).state[:, 0].tolist() == SEEDS
    again = pool.step(actions(1, 1, 1, 1, 1))
    assert again.lost_N is None, "episodes that start anew are not lost"
    assert again.rewards_NC[:, 0].tolist() == [11, 21, 31, 41, 51]


def test_an_exception_in_a_step_is_a_loss_with_its_traceback(make: Make, caplog: Any) -> None:
    pool = make()
    pool.reset(SEEDS)
    outcome = pool.step(actions(200, 1, 1, 1, 1))
    assert outcome.lost_N is not None
    assert outcome.lost_N.tolist() == [True, True, True, False, False]
    assert "ValueError: cannot count this" in caplog.text
    assert "in misbehave" in caplog.text


def test_a_process_that_hangs_is_killed_and_named(make: Make, caplog: Any) -> None:
    pool = make(timeout_s=1.5)
    pool.reset(SEEDS)
    began = time.monotonic()
    outcome = pool.step(actions(300, 1, 1, 1, 1))
    assert time.monotonic() - began < 20
    assert outcome.lost_N is not None
    assert outcome.lost_N[:3].all()
    assert "gave no answer for 1.5 s (env_pool.timeout_s) and was killed" in caplog.text


def test_what_a_simulator_tells_its_user_is_raised_as_it_is(make: Make) -> None:
    pool = make()
    pool.reset(SEEDS)
    with pytest.raises(PluginError, match=r"^counting of 400 is not supported; use 401$"):
        pool.step(actions(400, 1, 1, 1, 1))
    with pytest.raises(ConfigError, match=r"^simulator.limit: never$"):
        make(CounterConfig(refuse="simulator.limit: never"))
    with pytest.raises(PluginError, match=r"the start failed in its process .* a float32 cannot be told"):
        make(target="pool_simulators:Odd")


def test_after_a_refused_call_every_process_goes_on(make: Make) -> None:
    pool = make()
    pool.reset(SEEDS)
    with pytest.raises(PluginError, match="simulator Counter has no expert"):
        pool.expert([1.0] * 5)
    assert pool.step(actions(1, 1, 1, 1, 1)).rewards_NC[:, 0].tolist() == [11, 21, 31, 41, 51]
    assert pool.lives.used == 0


def test_processes_are_started_again_so_often_and_no_more(make: Make) -> None:
    pool = make(lives=Lives(1))
    pool.reset(SEEDS)
    pool.step(actions(100, 1, 1, 1, 1))
    pool.reset([10, 20, 30, 40, 100])
    with pytest.raises(PluginError, match=r"simulator counter: .* SIGKILL.*env_pool.restarts=1"):
        pool.render()
    with pytest.raises(PluginError, match=r"died of SIGKILL before it had begun, for the 3rd time; it"):
        make(CounterConfig(refuse="die"))


def test_the_group_goes_on_while_a_process_starts(make: Make) -> None:
    pool = make()
    pool.reset(SEEDS)
    pool.step(actions(100, 1, 1, 1, 1))
    absent = pool.absent()
    assert absent is not None
    assert absent.tolist() == [True, True, True, False, False]
    end = time.monotonic() + 20
    while pool.absent() is not None:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_settings_cross_as_they_are_or_are_refused() -> None:
    config = CounterConfig(names={"x": [1.5, None, (True, "text")]}, nested=Nested((3, 4)))
    assert decode(encode(config, "simulator")) == config
    assert decode(encode(NoConfig(), "simulator")) is None  # its module is more than other environments have
    with pytest.raises(ConfigError, match=r"simulator.names.x: a set cannot be told"):
        encode(CounterConfig(names={"x": {1}}), "simulator")


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import time\n"
        "from pool_simulators import CounterConfig\n"
        "from rlinf_core.isolation.program import Program\n"
        "from rlinf_core.pool.simulator import SimulatorPool\n"
        "pool = SimulatorPool(CounterConfig(), 2, 0, name='counter', target='pool_simulators:Counter',\n"
        "                     program=Program.own(), processes=2)\n"
        "print(*pool.process_ids(), flush=True)\n"
        "time.sleep(60)\n"
    )
    path = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_ended(pids)


def wait_until_ended(pids: Iterable[int]) -> None:
    end = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """A process that was killed keeps its sockets until its last thread is gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def test_closing_ends_every_process_and_may_be_repeated(make: Make) -> None:
    pool = make()
    pids = pool.process_ids()
    pool.close()
    pool.close()
    assert not any(alive(pid) for pid in pids)
