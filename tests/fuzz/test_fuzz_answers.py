"""Whatever a model answers, and whatever a file of rows holds: a verdict, or an error in words."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from rlinf_core.api.reward import RewardItem
from rlinf_core.builtin.rewards.code import cases_of
from rlinf_core.errors import DataError, RewardError
from rlinf_core.plugins import plugins
from rlinf_core.roles.batch_file import ARRAYS, FACTS, read_batch, write_batch
from rlinf_core.roles.reward_pool import PoolReward, RewardPool
from rlinf_core.testing.fakes import text_samples

TIMES = max(1, int(os.environ.get("RLINF_FUZZ", "0")))
PIECES = [
    *(
        "\\boxed{",
        "}",
        "{",
        "\\frac",
        "\\frac12",
        "\\frac{1}{",
        "\\sqrt",
        "\\text{B}",
        "$",
        "$$",
        "(A)",
        "<answer>",
    ),
    *(
        "</answer>",
        "<think>",
        "####",
        "the answer is",
        "50\\%",
        "1,234",
        "x=3",
        "-",
        "\\left(",
        "\\right)",
        "\\pm",
    ),
    *(
        "\n",
        "\0",
        "\ud7ff",
        "\u0660",
        "\u221e",
        "1e9",
        "0x1F",
        "nan",
        "\\infty",
        "\\{1,2\\}",
        "[1, 2)",
        "\\cup",
        "_",
    ),
    *("```python\n", "```", "1/0", "\\pi", "cm", "^2", "!", "|x|", "\\begin{pmatrix}", "\\\\", "&"),
]
ANSWER = some.lists(some.sampled_from(PIECES) | some.text(max_size=6), max_size=10).map("".join)
VERDICTS = {"ok", "unparsable", "timeout", "error"}
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(some.sampled_from(["inputs", "outputs", "a"]), inner)
    ),
    max_leaves=6,
)


def often(count: int) -> settings:
    return settings(
        max_examples=count * TIMES,
        derandomize=TIMES == 1,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def refused(function: Callable[[], object], kind: type[Exception]) -> str | None:
    """What is said by an error of this kind; None without one."""
    try:
        function()
    except kind as err:
        return str(err)
    return None


@pytest.fixture(scope="module", params=["exact", "math", "format", "length", "regex"])
def pool(request: pytest.FixtureRequest) -> RewardPool:
    """In this process, where an exception would reach us."""
    spec = plugins().get("rewards", request.param)
    config = spec.config(**spec.example)
    return RewardPool([PoolReward(request.param, spec.target, config)], workers=0, retries=0)


@often(60)
@given(response=ANSWER, answer=ANSWER)
def test_responses(pool: RewardPool, response: str, answer: str) -> None:
    (scored,) = pool.score([RewardItem("", response, answer)])
    assert math.isfinite(scored.value)
    assert set(scored.verdicts.values()) <= VERDICTS - {"error"}, scored


@often(100)
@given(answer=JSON | ANSWER)
def test_tests_of_programs(answer: object) -> None:
    said = refused(lambda: cases_of(answer), RewardError)
    assert said is None or "has no tests" in said


@often(80)
@given(content=some.binary(max_size=60), at=some.integers(0, 400), name=some.sampled_from([FACTS, ARRAYS]))
def test_batches_with_other_bytes(content: bytes, at: int, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_batch(Path(folder), text_samples(), {})
        file = Path(folder) / name
        whole = file.read_bytes()
        file.write_bytes(whole[:at] + content + whole[at + len(content) :])
        said = refused(lambda: read_batch(folder), DataError)
        assert said is None or "holds no batch" in said
