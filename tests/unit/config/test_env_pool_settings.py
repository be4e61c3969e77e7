"""What is said of settings of worker processes that cannot work, or have no effect."""

from __future__ import annotations

import pytest

from rlinf_core.config.check import check

EMBODIED = {"simulator": "line", "model": "mlp"}


@pytest.fixture
def warned(run, manager):
    return lambda *overrides, **flags: check(run(*overrides, **flags), manager)


def test_worker_processes_are_for_simulators(refused):
    assert refused("env_pool.processes=2") == [
        "env_pool: a text task does not use it; remove it (from override)"
    ]


def test_more_processes_than_environments_are_refused(refused, warned):
    assert warned("env_pool.processes=3", "train.num_envs=3", **EMBODIED) == []
    assert refused("env_pool.processes=4", "train.num_envs=3", **EMBODIED) == [
        "env_pool.processes: 4 processes of 3 environments leave some without; choose 3 or fewer (from "
        "override)"
    ]
    assert refused("env_pool.timeout_s=0", **EMBODIED) == [
        "env_pool.timeout_s: must be above 0, got 0.0 (from override)"
    ]


def test_an_environment_that_is_not_there_is_refused_where_it_is_insisted_on(refused):
    assert refused("env_pool.isolated=always", **EMBODIED) == [
        "env_pool.isolated: simulator 'line' has no environment of its own here; it offers none; set "
        "env_pool.isolated=auto (from override)"
    ]


def test_settings_of_processes_that_there_are_none_of_are_warned_of(warned):
    assert warned("env_pool.restarts=3", **EMBODIED) == [
        "env_pool.restarts: has no effect while env_pool.processes is 0 (from override)"
    ]
    assert warned("env_pool.restarts=3", "env_pool.processes=1", **EMBODIED) == []


def test_groups_take_turns_with_a_policy_beside_them_only_over_processes(warned):
    turns = ("mode=collocated", "schedule.stages=2")
    assert warned(*turns, "env_pool.processes=2", **EMBODIED) == []
    assert "with env_pool.processes groups" in warned(*turns, **EMBODIED)[0]
