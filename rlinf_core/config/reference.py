"""The table of core settings for `docs/configuration.md`: `python -m rlinf_core.config.reference`."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf_core.config.describe import FieldInfo, describe
from rlinf_core.config.dump import plain
from rlinf_core.config.schema import COMPONENT_LISTS, COMPONENTS, SCALARS, SECTIONS, RunConfig
from rlinf_core.config.show import value_text


def settings_table() -> str:
    """Every key of the core in Markdown; those of plugins are shown by `rlinf plugins show`."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|", *_component_rows()]
    whole = {item.name: item for item in describe(RunConfig)}
    rows += [_row(name, whole[name]) for name in SCALARS]
    for section, cls in SECTIONS.items():
        rows += [_row(f"{section}.{item.name}", item) for item in describe(cls)]
    return "\n".join(rows) + "\n"


def _component_rows() -> Iterator[str]:
    for section, kind in COMPONENTS.items():
        yield f"| `{section}` | plugin | | a name, or `{{name: NAME, KEY: VALUE}}`; kind `{kind}` |"
    for section, kind in COMPONENT_LISTS.items():
        weight = ", each with an optional `weight`" if section == "reward" else ""
        yield f"| `{section}` | plugins | | one or a list{weight}; kind `{kind}` |"


def _row(key: str, item: FieldInfo) -> str:
    kind = item.type.replace("|", "\\|")
    return f"| `{key}` | `{kind}` | `{value_text(plain(item.default))}` | {item.doc} |"


if __name__ == "__main__":
    print(settings_table(), end="")
