"""Settings as text for people: a recipe with origins, and lists of all settings.

`python -m rlinf_core.config.show` prints the table of `docs/configuration.md`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_core.config.describe import FieldInfo, describe
from rlinf_core.config.dump import dump, plain
from rlinf_core.config.schema import (
    COMPONENT_LISTS,
    COMPONENTS,
    INHERITS,
    SCALARS,
    SECTIONS,
    PolicyConfig,
    RunConfig,
)
from rlinf_core.types import OWN

_PLAIN = re.compile(r"[A-Za-z_./][\w./-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # not texts in YAML


def commented_yaml(config: RunConfig) -> str:
    """The whole config as a recipe; each value has its origin in an aligned comment."""
    lines = list(_lines(dump(config), "", "", config.origins))
    width = min(60, max(len(text) for text, _ in lines))
    return "".join(f"{text:<{width}}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def settings_lines(schema: Mapping[str, Any]) -> Iterator[str]:  # Any: JSON values
    """One line for each setting of `json_schema`: dotted key, type, default and what it is."""
    for section, entry in schema["properties"].items():
        if "properties" in entry:
            for name, item in entry["properties"].items():
                yield _setting_line(f"{section}.{name}", item)
        elif "anyOf" not in entry:
            yield _setting_line(section, entry)
    for kind, plugins in schema["$defs"].items():
        for plugin, entry in plugins.items():
            yield f"\n{kind} {plugin}: {entry['description']}"
            for name, item in entry["properties"].items():
                yield f"  {_setting_line(name, item)}"


def value_text(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(value_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{value_text(name)}: {value_text(item)}' for name, item in value.items())}}}"
    if isinstance(value, float) and abs(value) == float("inf"):
        return ".inf" if value > 0 else "-.inf"
    return json.dumps(value)


def _lines(
    tree: Mapping[str, Any], key: str, indent: str, origins: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """`(text, origin)` of each line."""
    for name, value in tree.items():
        here = f"{key}{name}"
        if isinstance(value, Mapping) and value and here not in origins:
            yield f"{indent}{name}:", ""
            yield from _lines(value, f"{here}.", f"{indent}  ", origins)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping) and here not in origins:
            yield f"{indent}{name}:", ""
            for index, item in enumerate(value):
                nested = _lines(item, f"{here}.{index}.", f"{indent}    ", origins)
                text, origin = next(nested)
                yield f"{indent}  - {text.lstrip()}", origin
                yield from nested
        else:
            yield f"{indent}{name}: {value_text(value)}", origins.get(here, "default")


def _setting_line(key: str, item: Mapping[str, Any]) -> str:
    default = value_text(item["default"]) if "default" in item else "(must be set)"
    kind = item.get("x-type", item.get("type", ""))
    text = f"  # {item['description']}" if item.get("description") else ""
    return f"{key}: {kind} = {default}{text}"


def settings_table() -> str:
    """Every key of the core in Markdown; those of plugins are shown by `rlinf plugins show`."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|", *_component_rows()]
    whole = {item.name: item for item in describe(RunConfig)}
    rows += [_row(name, whole[name]) for name in SCALARS]
    rows += [_policy_row(item) for item in describe(PolicyConfig)]
    for section, cls in SECTIONS.items():
        source = INHERITS.get(section, "")
        rows += [_row(f"{section}.{item.name}", item, source) for item in describe(cls)]
    return "\n".join(rows) + "\n"


def _component_rows() -> Iterator[str]:
    for section, kind in COMPONENTS.items():
        yield f"| `{section}` | plugin | | a name, or `{{name: NAME, KEY: VALUE}}`; kind `{kind}` |"
    for section, kind in COMPONENT_LISTS.items():
        weight = ", each with an optional `weight`" if section == "reward" else ""
        yield f"| `{section}` | plugins | | one or a list{weight}; kind `{kind}` |"


def _policy_row(item: FieldInfo) -> str:
    if not item.required:
        return _row(f"policies.NAME.{item.name}", item)
    doc = item.doc or f"of a policy that `agent.program` calls beside the run's own ({OWN!r})"
    return f"| `policies.NAME.{item.name}` | as `{item.name}` | that of `{item.name}` | {doc} |"


def _row(key: str, item: FieldInfo, source: str = "") -> str:
    """A row of the table; `source` is the section whose value is the default."""
    kind = item.type.replace("|", "\\|")
    default = f"that of `{source}`" if source else f"`{value_text(plain(item.default))}`"
    return f"| `{key}` | `{kind}` | {default} | {item.doc} |"


if __name__ == "__main__":
    sys.stdout.write(settings_table())
