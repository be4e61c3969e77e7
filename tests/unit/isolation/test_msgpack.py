"""The part of MessagePack that is spoken between environments, against bytes of its specification."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlinf_core.isolation.msgpack import pack, unpack


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "c0"),
        (False, "c2"),
        (True, "c3"),
        (127, "7f"),
        (128, "cc80"),
        (65536, "ce00010000"),
        (2**64 - 1, "cfffffffffffffffff"),
        (-32, "e0"),
        (-33, "d0df"),
        (-129, "d1ff7f"),
        (-(2**63), "d38000000000000000"),
        (1.5, "cb3ff8000000000000"),
        ("é", "a2c3a9"),
        ("x" * 32, "d920" + "78" * 32),
        (b"\x00\xff", "c40200ff"),
        ([1, "a"], "9201a161"),
        ({"k": [], 7: None}, "82a16b9007c0"),
    ],
)
def test_values_are_written_as_the_specification_says(value: Any, written: str) -> None:
    assert pack(value).hex() == written
    assert unpack(bytes.fromhex(written)) == value


def test_long_and_nested_values_come_back() -> None:
    value = {"ids": list(range(70_000)), "text": "y" * 70_000, "raw": bytes(300), "deep": {"a": {"b": [[]]}}}
    assert unpack(pack(value)) == value
    assert unpack(pack((1, 2))) == [1, 2]
    assert math.isnan(unpack(pack(math.nan)))
    assert unpack(pack(-math.inf)) == -math.inf


def test_what_cannot_be_told_or_is_cut_off_is_an_error() -> None:
    with pytest.raises(TypeError, match="a set cannot be told to another process"):
        pack({"a": {1}})
    with pytest.raises(OverflowError):
        pack(2**64)
    with pytest.raises(ValueError, match="ends too early"):
        unpack(pack([1, 2, "three"])[:-1])
    with pytest.raises(ValueError, match="1 bytes behind"):
        unpack(pack(3) + b"\x00")
    with pytest.raises(ValueError, match="0xc1 is not used"):
        unpack(b"\xc1")
