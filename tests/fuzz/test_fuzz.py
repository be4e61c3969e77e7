"""Whatever a file or a setting holds: what is wrong with it is told in words, never by a traceback.

`RLINF_FUZZ=N` makes N times as many examples, new ones each time.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.cluster.files import read_cluster
from rlinf_core.cluster.placement import parse_placement
from rlinf_core.config.check import check
from rlinf_core.config.compose import compose
from rlinf_core.config.dump import dump
from rlinf_core.config.options import Options
from rlinf_core.config.resolve import parse_override
from rlinf_core.errors import RlinfError
from rlinf_core.plugins import plugins
from rlinf_core.run.checkpoint import CheckpointStore
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan_yaml import plan_from_yaml, plan_to_yaml
from rlinf_core.schedule.profile_yaml import profile_from_yaml

TIMES = int(os.environ.get("RLINF_FUZZ", "0"))
Tree = dict[str, Any]  # Any: JSON values


def examples(count: int) -> settings:
    """So many examples, always the same ones unless more are asked for."""
    allowed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=count * max(1, TIMES),
        derandomize=not TIMES,
        deadline=None,
        suppress_health_check=allowed,
    )


def refuses_in_words(function: Callable[[], object]) -> None:
    """It works, or raises what the command line prints in words."""
    try:
        function()
    except RlinfError as err:
        said = str(err)
    else:
        return
    assert said.strip()
    assert "Traceback" not in said


TEXT = some.text(max_size=12) | some.sampled_from(
    [
        "0-3",
        "1e400",
        "${seed}",
        "${",
        "${a.b}",
        "\\${",
        "???",
        "~",
        "on",
        "0x1F",
        "1_000",
        ".nan",
        "-.inf",
        "2024-01-01",
    ]
)
LEAF = (
    some.none()
    | some.booleans()
    | some.integers()
    | some.sampled_from([-1, 0, 1, 2, 2**31, 2**63, 10**30])
    | some.floats()
    | TEXT
)
VALUE = some.recursive(
    LEAF,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to everything inside of a tree."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found = [path] if path else []
    for key, value in inner:
        found += places(value, (*path, key))
    return found


@some.composite
def spoilt(draw: some.DrawFn, whole: Tree) -> Tree:
    """A tree with one to three changes: values replaced, keys renamed, added or left out."""
    tree = copy.deepcopy(whole)
    for _ in range(draw(some.integers(1, 3))):
        found = places(tree)
        if not found:
            break
        *way, key = draw(some.sampled_from(found))
        holder: Any = tree
        for step in way:
            holder = holder[step]
        change = draw(some.sampled_from(["value", "value", "value", "drop", "rename", "add"]))
        if change == "value":
            holder[key] = draw(VALUE)
        elif change == "drop":
            del holder[key]
        elif isinstance(holder, dict):
            name = draw(some.text(max_size=8) | some.integers() | some.booleans())
            holder[name] = holder.pop(key) if change == "rename" else draw(VALUE)
    return tree


def as_yaml(tree: Any) -> str:
    return str(yaml.dump(tree, allow_unicode=True))


CLUSTER = Cluster((Node(4, "A100"), Node(2, "H100")))
GRAPH = Graph(
    (
        Component("environment"),
        Component("rollout", parallel_sizes=(1, 2), max_devices=4),
        Component("score", on_devices=False),
        Component("actor", lockstep=True),
    ),
    (Edge("rollout", "actor"),),
    samples=64,
    cycles=(("environment", "rollout"),),
)
PLAN: Tree = {
    "mode": "hybrid",
    "stages": 2,
    "components": {
        "environment": {"devices": "0-1"},
        "rollout": {"devices": [3, 2], "chunk": 16, "resident": False, "model_parallel": 2},
        "actor": {"devices": "0-3", "micro_batch": 4},
    },
    "prediction": {"step_s": 12.5, "busy_s": {"rollout": 3.25}, "memory_bytes": 1.5e9, "bubble_ratio": 0.25},
}
PROFILE: Tree = {
    "fingerprint": "abc",
    "components": {
        "rollout": {
            "curves": [{"per_sample_s": 0.5, "devices": 1}],
            "memory": {"resident_bytes": 1e9, "per_sample_bytes": 1e6},
        },
        "actor": {"measurements": [{"devices": 1, "samples": 4, "seconds": 0.25}]},
    },
}
NODES: Tree = {
    "nodes": [{"count": 4, "devices": 8, "type": "H100", "memory_gib": 80, "group": "fast"}, {"count": 1}],
    "links": {"intra_node_gb_per_s": 400, "inter_node_gb_per_s": 50, "latency_us": 5},
}


@examples(150)
@given(tree=spoilt(PLAN))
def test_plans(tree: Tree) -> None:
    def read_and_write() -> None:
        plan = plan_from_yaml(as_yaml(tree), GRAPH, CLUSTER)
        assert plan_from_yaml(plan_to_yaml(plan), GRAPH, CLUSTER).assignments == plan.assignments

    refuses_in_words(read_and_write)


@examples(100)
@given(tree=spoilt(PROFILE))
def test_profiles(tree: Tree) -> None:
    refuses_in_words(lambda: profile_from_yaml(as_yaml(tree)))


@examples(100)
@given(tree=spoilt(NODES))
def test_clusters(tree: Tree, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(as_yaml(tree), encoding="utf-8")
    refuses_in_words(lambda: read_cluster(path))


@examples(150)
@given(
    content=some.binary(max_size=40)
    | some.text(max_size=40).map(lambda text: text.encode("utf-8", "replace"))
)
def test_files_that_are_no_yaml(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    refuses_in_words(lambda: compose(Options(config=(path,))))
    refuses_in_words(lambda: read_cluster(path))


ALPHABET = "0123456789-,:ansdl/ .*x²"
NUMBERS = some.text(ALPHABET, max_size=12) | some.sampled_from(
    ["all", "0-0:0-1", "0-3:0-1,4", "5-2", "0-99999999999"]
)


@examples(300)
@given(
    spec=some.dictionaries(
        some.sampled_from(["actor", "rollout", "actor,rollout", "reward", ",", "", "actor,actor"]),
        NUMBERS
        | some.integers()
        | some.fixed_dictionaries(
            {"node_group": TEXT | some.lists(TEXT, max_size=2), "placement": NUMBERS | LEAF}
        )
        | VALUE,
        max_size=3,
    )
)
def test_placements(spec: Mapping[str, object]) -> None:
    refuses_in_words(lambda: parse_placement(spec, CLUSTER, ["actor", "rollout"], ["reward"]))


@examples(200)
@given(
    text=some.text(max_size=20)
    | some.builds(
        "{}={}".format,
        some.sampled_from(["train.steps", "algo", "model.preset", "placement.actor"]),
        some.text(max_size=12),
    )
)
def test_overrides(text: str) -> None:
    refuses_in_words(lambda: parse_override(text))


QUICKSTART = dump(compose(Options(recipe="quickstart")))


def composed(path: Path) -> None:
    config = compose(Options(config=(path,)))
    check(config, plugins(), 2)
    assert dump(config)


@examples(60)
@given(tree=spoilt(QUICKSTART))
def test_settings(tree: Tree, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(as_yaml(tree), encoding="utf-8")
    refuses_in_words(lambda: composed(path))


@pytest.fixture
def saved(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", 2)
    draft = store.draft(1)
    (draft / "actor").mkdir()
    (draft / "actor" / "weights").write_bytes(b"0123")
    store.commit(1, draft, {"ranks": 1, "source": {}}, {})
    return store


def opened(store: CheckpointStore) -> None:
    checkpoint = store.latest()
    assert checkpoint is not None
    assert isinstance(checkpoint.step, int)


@contextlib.contextmanager
def restored(folder: Path) -> Iterator[None]:
    """What the block does to the files of a folder is undone, whatever comes of it."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    try:
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)


STATE: Tree = {"step": 1, "ranks": 1, "source": {}}
MANIFEST: Tree = {
    "files": {
        "actor/weights": {"bytes": 4, "crc32": "a684c7c6"},
        "state.json": {"bytes": 42, "crc32": "5f3ff3a8"},
    }
}


@examples(150)
@given(tree=spoilt(MANIFEST) | VALUE)
def test_manifests(tree: Any, saved: CheckpointStore) -> None:
    folder = saved.root / "step_1"
    with restored(folder):
        (folder / "manifest.json").write_text(json.dumps(tree), encoding="utf-8")
        refuses_in_words(lambda: opened(saved))


@examples(150)
@given(tree=spoilt(STATE) | VALUE)
def test_states_that_the_manifest_does_not_list(tree: Any, saved: CheckpointStore) -> None:
    """As if somebody had written both."""
    folder = saved.root / "step_1"
    with restored(folder):
        (folder / "state.json").write_text(json.dumps(tree), encoding="utf-8")
        (folder / "manifest.json").write_text('{"files": {}}')
        refuses_in_words(lambda: opened(saved))


@examples(100)
@given(
    content=some.binary(max_size=30), name=some.sampled_from(["manifest.json", "state.json", "actor/weights"])
)
def test_checkpoints_with_other_bytes(content: bytes, name: str, saved: CheckpointStore) -> None:
    folder = saved.root / "step_1"
    with restored(folder):
        (folder / name).write_bytes(content)
        with pytest.raises(RlinfError, match="step_1"):
            saved.latest()
