"""Policies beside the run's own: what each leaves unsaid is as the run's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from rlinf_core.config.reading.convert import convert_field
from rlinf_core.config.reading.layers import Merged, Tree
from rlinf_core.config.schema import POLICY_COMPONENTS, POLICY_SECTIONS, Component, PolicyConfig
from rlinf_core.errors import suggest
from rlinf_core.types import OWN

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
Build = Callable[[str, str, Tree], Component | None]  # key, section, tree


def read_policies(
    parts: Mapping[str, Any], merged: Merged, build: Build
) -> dict[str, PolicyConfig]:  # Any: the fields of RunConfig
    """By name. What does not fit is told in `merged.problems`."""
    found = {}
    for name, tree in merged.tree.get("policies", {}).items():
        key = f"policies.{name}"
        if not _NAME.fullmatch(name) or name == OWN:
            merged.problems.append(
                f"{key}: a policy's name is letters, digits, - and _, and not {OWN!r}, which is the run's own"
                f"{merged.came(key)}"
            )
            continue
        policy = _policy(key, tree, parts, merged, build)
        if policy is not None:
            found[name] = policy
    return found


def _policy(
    key: str, tree: Tree, parts: Mapping[str, Any], merged: Merged, build: Build
) -> PolicyConfig | None:
    before = len(merged.problems)
    made: dict[str, Any] = {}
    for section in POLICY_COMPONENTS:
        own, run = tree.get(section, {}), merged.tree.get(section, {})
        if own.get("name", run.get("name")) == run.get("name"):
            own = {**run, **own}
            _inherit(key, section, merged)
        made[section] = build(f"{key}.{section}", section, own)
    for section in POLICY_SECTIONS:
        _inherit(key, section, merged)
        made[section] = _section(f"{key}.{section}", tree.get(section, {}), parts[section], merged)
    for name in set(tree) - {*POLICY_COMPONENTS, *POLICY_SECTIONS}:
        if name == "warm_start":
            made |= convert_field(PolicyConfig, name, tree[name], f"{key}.{name}", key, merged)
        else:
            known = [item.name for item in fields(PolicyConfig)]
            merged.problems.append(
                f"{key}.{name}: unknown key{merged.came(f'{key}.{name}')}; a policy has: {', '.join(known)}."
                f"{suggest(name, known)}"
            )
    return None if len(merged.problems) > before else PolicyConfig(**made)


def _inherit(key: str, section: str, merged: Merged) -> None:
    """What is not set came from where the run's did; paths are looked for there too."""
    for name, origin in list(merged.origins.items()):
        if name.startswith(f"{section}."):
            merged.origins.setdefault(f"{key}.{name}", origin)


def _section(key: str, tree: Tree, run: Any, merged: Merged) -> Any:  # Any: a section's dataclass
    changed: Tree = {}
    known = [item.name for item in fields(run)]
    for name, value in tree.items():
        if name in known:
            changed |= convert_field(type(run), name, value, f"{key}.{name}", key, merged)
        else:
            merged.problems.append(
                f"{key}.{name}: unknown key{merged.came(f'{key}.{name}')}; there are: {', '.join(known)}."
                f"{suggest(name, known)}"
            )
    return replace(run, **changed)


def policy_components(policies: Mapping[str, PolicyConfig]) -> Iterator[tuple[str, Component]]:
    """With their dotted keys."""
    for name, policy in policies.items():
        for section in POLICY_COMPONENTS:
            yield f"policies.{name}.{section}", getattr(policy, section)
