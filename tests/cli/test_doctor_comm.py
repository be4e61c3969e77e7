"""`rlinf doctor --comm` measures every pair of processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def test_every_pair_is_measured_and_told_with_its_way(rlinf: Callable[..., Any]) -> None:
    ended = rlinf("doctor", "--comm", "--json")
    assert ended.code == 0
    found = {(pair["sender"], pair["receiver"]): pair for pair in json.loads(ended.out)}
    names = {sender for sender, _ in found}
    assert len(found) == len(names) ** 2 >= 4
    for (sender, receiver), pair in found.items():
        assert pair["way"] == ("reference" if sender == receiver else "shared memory")
        assert pair["update_ms"] > 0
        assert 0 < pair["message_ms"] < 10_000
