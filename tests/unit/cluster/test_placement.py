"""The placement grammar: what it means, and what it refuses with a way out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.cluster.numbering import as_ranges
from rlinf_core.cluster.placement import one_device_each, parse_placement
from rlinf_core.errors import ConfigError

TWO_GROUPS = Cluster((Node(8, "A100", group="a100"), Node(8, "L40S", group="l40s")))
EIGHT = Cluster((Node(8),))


def places(text: object, cluster: Cluster = TWO_GROUPS) -> list[tuple[int, ...]]:
    """The devices of each process of one component."""
    ranks = parse_placement({"actor": text}, cluster, ["actor"])["actor"]
    assert [rank.rank for rank in ranks] == list(range(len(ranks)))
    assert all(rank.node == cluster.node_of(device) for rank in ranks for device in rank.devices)
    return [rank.devices for rank in ranks]


def problem(spec: Mapping[str, object], cluster: Cluster = EIGHT, components: str = "actor") -> str:
    """The one line of what is wrong."""
    with pytest.raises(ConfigError) as caught:
        parse_placement(spec, cluster, components.split())
    (line,) = str(caught.value).splitlines()
    return line


def test_each_device_has_one_process_where_processes_are_not_numbered():
    assert places("0-3,6") == [(0,), (1,), (2,), (3,), (6,)]
    assert places("all") == [(device,) for device in range(16)]
    assert places(3) == [(3,)]
    assert places(" 0 - 1 , 5 ") == [(0,), (1,), (5,)]


def test_a_key_names_several_components():
    placed = parse_placement(
        {"actor, rollout": "0-1", "environment": "2"}, EIGHT, ["actor", "rollout"], ["environment"]
    )
    assert placed["actor"] == placed["rollout"]
    assert [rank.devices for rank in placed["environment"]] == [(2,)]


def test_more_processes_than_devices_are_dealt_out_in_blocks():
    mixed = places("0-1:0-3,3-5,7-10:7-14")
    assert mixed[:4] == [(0,), (0,), (1,), (1,)]
    assert mixed[4:7] == [(3,), (4,), (5,)]
    assert mixed[7:] == [(7,), (7,), (8,), (8,), (9,), (9,), (10,), (10,)]


def test_fewer_processes_than_devices_have_several_each():
    assert places("0-3:0-1,4-5:2") == [(0, 1), (2, 3), (4, 5)]


def test_numbers_count_within_the_node_groups_in_the_order_named():
    assert places({"node_group": "l40s", "placement": "0-1"}) == [(8,), (9,)]
    assert places({"node_group": "l40s,a100", "placement": "7-8"}) == [(15,), (0,)]
    assert places({"node_group": ["a100", "l40s"], "placement": "7-8"}) == [(7,), (8,)]
    assert places({"placement": "0"}) == [(0,)]


def test_the_node_group_node_counts_whole_nodes():
    spec = {"actor": {"node_group": "node", "placement": "0-1:0-3"}}
    ranks = parse_placement(spec, TWO_GROUPS, ["actor"])["actor"]
    assert [(rank.devices, rank.node) for rank in ranks] == [((), 0), ((), 0), ((), 1), ((), 1)]


@pytest.mark.parametrize(
    ("text", "rule", "works"),
    [
        ("0-9", "device 8 does not exist", "0-7"),
        ("6-12", "device 8 does not exist", "6-7"),
        ("9", "device 9 does not exist", "0-7"),
        ("0-3,2-5", "device 2 is named twice", "0-5"),
        ("all,7", "device 7 is named twice", "0-7"),
        ("4-7,0-1", "'0-1' comes after device 7", "0-1,4-7"),
        ("7-0", "'7-0' counts down", "0-7"),
        ("", "it is empty", "0-7"),
        ("0-3:0-5", "'0-3:0-5' gives 4 devices to 6 processes; one number must be a multiple", "0-3"),
        ("0-5:0-3", "'0-5:0-3' gives 6 devices to 4 processes; one number must be a multiple", "0-5"),
        ("0-1:1-2", "process 0 has no place", "0-1"),
        ("0-1:0-1,2-3:1-2", "process 1 is named twice", "0-3"),
        ("0-1:0-1,2-3:3-4", "process 2 has no place", "0-3"),
        ("0-1:1-0", "process 0 has no place", "0-1"),
        ("0-1:all", "'0-1:all' leaves the number of processes open", "0-1"),
    ],
)
def test_a_broken_rule_is_told_with_what_exists_and_a_placement_that_works(text: str, rule: str, works: str):
    said = problem({"actor": text})
    assert said.startswith(f"placement.actor: {rule}"), said
    assert "; there are 8 devices (0-7). " in said
    assert said.endswith(f"One that works: actor: {works}")
    assert parse_placement({"actor": works}, EIGHT, ["actor"])


@pytest.mark.parametrize(
    "text", ["a-b", "0..7", "0-1-2", "0:1:2", "-1", "all-3", "1e3", True, 1.5, None, ["0"]]
)
def test_what_is_no_placement_is_told_with_the_forms_there_are(text: object):
    said = problem({"actor": text})
    assert " is no placement; write devices as 0-7, as 0-3,6 or as all, and processes behind a colon" in said


def test_a_suggestion_keeps_the_node_group():
    said = problem({"actor": {"node_group": "a100", "placement": "4-9"}}, TWO_GROUPS)
    assert "device 8 does not exist; there are 8 devices of node group 'a100' (0-7)." in said
    assert said.endswith("One that works: actor: {node_group: a100, placement: 4-7}")


def test_an_unknown_node_group_or_key_is_refused():
    said = problem({"actor": {"node_group": "a10", "placement": "0"}}, TWO_GROUPS)
    assert "there is no node group 'a10'; there are: a100, l40s. Did you mean 'a100'?" in said
    assert "the cluster names none" in problem({"actor": {"node_group": "a", "placement": "0"}})
    assert "unknown key 'place'" in problem({"actor": {"place": "0"}})
    assert "'placement' is missing" in problem({"actor": {"node_group": "a100"}}, TWO_GROUPS)


def test_a_process_on_two_nodes_is_refused():
    assert "process 0 would have devices of 2 nodes" in problem({"actor": "7-8:0"}, TWO_GROUPS)


def test_components_are_known_and_placed_exactly_once():
    both = {"actor": "0-3", "rollout": "4-7"}
    said = problem({**both, "rolout": "0"}, components="actor rollout")
    assert said.startswith(
        "placement.rolout: there is no component 'rolout'; this run places: actor, rollout."
    )
    assert said.endswith("Did you mean 'rollout'?")
    assert "Did you mean 'environment'?" in problem({"env": 0, "environment": 0}, components="environment")
    said = problem({"actor": "0", "actor,rollout": "1"}, components="actor rollout")
    assert said == "placement.actor: it is placed twice; keep one of its entries"
    said = problem({"actor": "0-3"}, components="actor rollout")
    assert said.startswith("placement.rollout: it has no placement")
    assert said.endswith("there are 8 devices (0-7). One that works: rollout: 0-7")


def test_all_problems_are_told_together():
    with pytest.raises(ConfigError) as caught:
        parse_placement({"actor": "0-9", "roll": "7-0"}, EIGHT, ["actor", "rollout"])
    assert len(str(caught.value).splitlines()) == 4


def test_what_this_engine_cannot_run_is_refused_after_it_was_understood():
    def one_each(text: object) -> tuple[int, ...]:
        return one_device_each("actor", parse_placement({"actor": text}, TWO_GROUPS, ["actor"])["actor"])

    assert one_each("0-1,5") == (0, 1, 5)
    with pytest.raises(ConfigError, match=r"process 0 has devices 0-1; .* One that works: actor: 0-3$"):
        one_each("0-3:0-1")
    with pytest.raises(ConfigError, match=r"device 0 has 2 of its processes; .* One that works: actor: 0-1$"):
        one_each("0-1:0-3")
    with pytest.raises(ConfigError, match="process 0 has node 0 but no device"):
        one_each({"node_group": "node", "placement": "0-1"})


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((4,), "4"), ((0, 1, 2, 3, 6), "0-3,6"), ((2, 1, 0), "2,1,0"), ((1, 2), "1-2")],
)
def test_numbers_are_written_as_ranges(numbers: tuple[int, ...], text: str):
    assert as_ranges(numbers) == text
