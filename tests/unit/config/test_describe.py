"""Field comments as documentation, and the JSON Schema made of them."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Literal

from rlinf_core.config.describe import FieldInfo, describe
from rlinf_core.config.json_schema import json_schema
from rlinf_core.config.schema import SECTIONS


@dataclass
class Base:
    first: int = 1  # from the base
    shadowed: int = 2  # the base's words


@dataclass
class Example(Base):
    path: str = field(  # in a statement of
        metadata={"path": True}, kw_only=True
    )  # several lines
    mode: Literal["a", "#b"] = "#b"  # a '#' in a text is no comment
    many: tuple[int, ...] = field(default_factory=lambda: (1, 2))
    shadowed: int = 3  # the subclass's words
    quiet: int = 0


def test_fields_are_described_by_their_trailing_comments():
    assert describe(Example) == [
        FieldInfo("first", "int", 1, "from the base"),
        FieldInfo("shadowed", "int", 3, "the subclass's words"),
        FieldInfo("path", "str", MISSING, "in a statement of several lines"),
        FieldInfo("mode", "Literal['a', '#b']", "#b", "a '#' in a text is no comment"),
        FieldInfo("many", "tuple[int, ...]", (1, 2), ""),
        FieldInfo("quiet", "int", 0, ""),
    ]


def test_a_class_without_source_has_fields_without_words():
    made = dataclass(type("Made", (), {"__annotations__": {"x": int}, "x": 1}))
    assert describe(made) == [FieldInfo("x", "int", 1, "")]


def test_every_core_setting_is_described():
    silent = [
        f"{name}.{item.name}" for name, cls in SECTIONS.items() for item in describe(cls) if not item.doc
    ]
    assert silent == []


def test_the_schema_holds_core_sections_and_plugin_settings(manager):
    schema = json_schema(manager)
    assert schema["properties"]["train"]["properties"]["old_logprobs"]["enum"] == [
        "auto",
        "rollout",
        "recompute",
    ]
    grpo = schema["$defs"]["algorithms"]["grpo"]
    assert grpo["properties"]["group_size"] == {
        "type": "integer",
        "x-type": "int",
        "description": "responses per prompt",
        "default": 8,
    }
    assert schema["$defs"]["datasets"]["jsonl"]["required"] == ["path"]
    assert schema["properties"]["optimizer"]["properties"]["lr"]["default"] == 1e-5
