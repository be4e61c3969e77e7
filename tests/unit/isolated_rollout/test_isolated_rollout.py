"""Rollout engines in another process: the contract, and what happens when the process fails."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf_core.api import LoRAConfig, RolloutCapabilities, WeightBucket
from rlinf_core.errors import ModelError, WorkerError
from rlinf_core.isolated_rollout import link
from rlinf_core.isolated_rollout.proxy import IsolatedRollout
from rlinf_core.isolated_rollout.rows import Row
from rlinf_core.isolation.program import Program
from rlinf_core.plugins import Isolation, RolloutSpec
from rlinf_core.testing.checks import checks_of
from rlinf_core.testing.fakes import TinyTextModel
from rlinf_core.testing.subject import Subject
from rlinf_core.types import Begun, Prompt, Request, Sampling

sys.path.insert(0, str(Path(__file__).parent))
from letters_engine import LettersConfig

TARGET = "letters_engine:LettersEngine"
SPEC = RolloutSpec(
    name="letters",
    summary="",
    target=TARGET,
    config=LettersConfig,
    provides=RolloutCapabilities(abort=True, continues=True),
    isolation=Isolation(lock="letters/lock.txt"),
)
Make = Callable[..., IsolatedRollout]


@pytest.fixture
def make() -> Iterator[Make]:
    """A function that starts an engine; all are closed in the end."""
    made: list[IsolatedRollout] = []

    def start(timeout_s: float = 60.0, **settings: Any) -> IsolatedRollout:
        engine = IsolatedRollout(
            LettersConfig(**settings),
            TinyTextModel(None),
            LoRAConfig(),
            name="letters",
            target=TARGET,
            program=Program.own(),
            timeout_s=timeout_s,
        )
        made.append(engine)
        return engine

    yield start
    for engine in made:
        engine.close()


def bucket(seed: int = 0, version: int = 1) -> WeightBucket:
    return WeightBucket(version, dict(TinyTextModel(None).module(seed).named_parameters()), last=True)


def requests(count: int = 6) -> list[Request]:
    return [Request(Prompt(i, np.array([1, 3 + i % 5]), ""), i, 0, seed=i) for i in range(count)]


@pytest.mark.parametrize("check", checks_of("rollouts"), ids=lambda check: check.__name__)
def test_an_engine_in_another_process_keeps_the_contract(check: Callable[[Subject], None]) -> None:
    check(Subject(SPEC, LettersConfig()))


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "die",
            r"its process \(pid \d+\) died of SIGKILL; it had printed:\nletters: about to die",
        ),
        (
            "raise",
            r"generation failed in its process \(pid \d+\): ValueError: no letter comes to mind\nTr",
        ),
    ],
)
def test_a_process_that_ends_is_named_within_five_seconds(fault: str, says: str, make: Make) -> None:
    engine = make(fault=fault)
    engine.load_weights([bucket()])
    began = time.monotonic()
    with pytest.raises(WorkerError, match=says):
        list(engine.generate([requests()], Sampling(max_new_tokens=20)))
    assert time.monotonic() - began < 5
    with pytest.raises(WorkerError, match=says):
        engine.load_weights([bucket()])


@pytest.mark.parametrize(
    ("fault", "says"),
    [("stop", "was silent for 3 s"), ("hang", "made no step and gave no answer for 3 s")],
)
def test_a_process_that_does_nothing_is_named_and_in_the_end_killed(
    fault: str,
    says: str,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(link, "SILENT_S", 1.5)
    engine = make(fault=fault, timeout_s=3.0)
    engine.load_weights([bucket()])
    with caplog.at_level(logging.WARNING), pytest.raises(WorkerError, match=says):
        list(engine.generate([requests()], Sampling(max_new_tokens=20)))
    named = [text for text in caplog.messages if " s; it had printed:\nletters: about to" in text]
    assert len(named) == (fault == "stop")  # while it hangs, its pings are answered
    with pytest.raises(ProcessLookupError):
        os.kill(engine.pid, 0)


@pytest.mark.parametrize(
    ("fault", "says"),
    [("stop", "was silent for 3 s"), ("hang", "made no step and gave no answer for 3 s")],
)
def test_so_is_one_while_others_may_have_something_to_ask(fault: str, says: str, make: Make) -> None:
    engine = make(fault=fault, timeout_s=3.0)
    engine.load_weights([bucket()])
    pauses = itertools.chain([requests()], itertools.repeat([]))
    with pytest.raises(WorkerError, match=says):
        list(engine.generate(pauses, Sampling(max_new_tokens=20)))


def test_an_engine_that_refuses_says_so_itself(make: Make) -> None:
    with pytest.raises(ModelError, match=r"^the letters are not served here$"):
        make(fault="refuse")


def test_a_weight_that_an_update_passed_over_is_named(make: Make) -> None:
    engine = make(forgets="head.bias")
    with pytest.raises(ModelError, match=r"version 7, 1 of 5 weights in the engine .* sent: head.bias"):
        engine.load_weights([bucket(version=7)])
    assert engine.version == -1
    with pytest.raises(ModelError, match="no weight version is there"):
        next(engine.generate([requests()], Sampling()))


def test_weights_travel_in_the_engines_type_and_in_buckets_of_any_size(make: Make) -> None:
    engine = make(dtype="bfloat16")
    tensors = dict(TinyTextModel(None).module(3).named_parameters())
    names = list(tensors)
    parts = [names[:1], names[1:2], names[2:]]
    buckets = [WeightBucket(5, {name: tensors[name] for name in part}) for part in parts]
    assert engine.load_weights(buckets) == 5
    assert engine.verified == len(names)
    assert engine.memory_bytes() == 4 * sum(tensor.numel() for tensor in tensors.values())


def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    code = (
        "import os, signal\nfrom test_isolated_rollout import *\n"
        "IsolatedRollout(LettersConfig(started=sys.argv[1]), TinyTextModel(None), LoRAConfig(),"
        " name='letters', target=TARGET, program=Program.own())\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run(
        [sys.executable, "-c", code, str(started)], env={**os.environ, "PYTHONPATH": path}, check=False
    )
    child = int(started.read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_responses_that_nobody_takes_are_given_up(make: Make) -> None:
    engine = make()
    engine.load_weights([bucket()])
    made = engine.generate([requests(30)], Sampling(max_new_tokens=30))
    next(made)
    made.close()  # type: ignore[attr-defined]
    again = [
        sample for chunk in engine.generate([requests(3)], Sampling(max_new_tokens=4)) for sample in chunk
    ]
    assert sorted(sample.group for sample in again) == [0, 1, 2]


def test_a_prompt_without_room_is_refused_with_the_numbers(make: Make) -> None:
    engine = make()
    engine.load_weights([bucket()])
    with pytest.raises(ModelError, match=r"prompt 0 has 2 tokens .* together 72, but .* context is 64"):
        next(engine.generate([requests(1)], Sampling(max_new_tokens=70)))


def test_a_response_that_goes_on_draws_from_another_seed_than_it_began_with() -> None:
    request = requests(2)[1]
    begun = Begun(np.array([4, 5]), np.array([-1.0, -2.0], np.float32), np.array([3, 3]))
    first = Row.of(request, Sampling(max_new_tokens=9, min_new_tokens=4)).job(1)
    later = Row.of(replace(request, begun=begun), Sampling(max_new_tokens=9, min_new_tokens=4)).job(1)
    assert (first.token_ids, first.most, first.least) == ([1, 4], 9, 4)
    assert (later.token_ids, later.most, later.least) == ([1, 4, 4, 5], 7, 2)
    assert first.seed == 1
    assert later.seed != first.seed
    assert 0 <= later.seed < 2**63
