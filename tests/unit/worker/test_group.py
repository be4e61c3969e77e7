"""Groups, routing, and which of several errors is reported."""

from __future__ import annotations

import pytest

from rlinf_core.errors import ConfigError, RewardError, WorkerError
from rlinf_core.worker import WorkerGroup
from rlinf_core.worker.failures import StageCancelledError, first_real, is_consequence, raised
from rlinf_core.worker.stage_run import Router


def test_spread_goes_to_the_least_loaded_rank_and_ties_to_the_lowest() -> None:
    router = Router(3, "spread", len)
    sizes = [4, 2, 1, 1, 1, 3, 1]
    # loads: 4 0 0 | 4 2 0 | 4 2 1 | 4 2 2 | 4 3 2 | 4 3 5 | 4 4 5
    assert [router.targets([0] * size)[0] for size in sizes] == [0, 1, 2, 2, 1, 2, 1]
    assert router.loads == [4, 4, 5]


def test_broadcast_goes_to_all_ranks() -> None:
    assert list(Router(3, "broadcast", len).targets([1])) == [0, 1, 2]


def test_the_cause_is_found_among_its_consequences() -> None:
    echo = WorkerError("actor[0].train failed: RuntimeError: [gloo] Connection closed by peer")
    stopped = StageCancelledError("cancelled")
    cause = WorkerError("actor[1].train failed: ValueError: no")
    assert first_real([echo, stopped, cause]) is cause
    assert first_real([echo, stopped]) is echo
    assert is_consequence(echo)
    assert not is_consequence(cause)


def test_an_error_is_wrapped_once_and_keeps_what_it_was() -> None:
    try:
        raise RewardError("five of eight")
    except RewardError as error:
        wrapped = raised(error, "reward[0]", "score")
    assert str(wrapped) == "reward[0].score failed: RewardError: five of eight"
    assert wrapped.worker == "reward[0]"
    assert "test_group.py" in wrapped.traceback
    assert isinstance(wrapped.__cause__, RewardError)
    assert raised(wrapped, "actor[0]", "train") is wrapped


def test_a_group_needs_one_device_and_one_set_of_arguments_a_rank() -> None:
    with pytest.raises(ConfigError, match="has no members"):
        WorkerGroup("actor", [])
    with pytest.raises(ConfigError, match="0 hosts, 1 devices"):
        WorkerGroup.create("actor", "m:C", [], {}, ["cpu"], 0)
