"""Profiles as YAML, measured or written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rlinf_core.config.resolve import parse_yaml
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.curve import Coefficients, Table
from rlinf_core.schedule.profile import Measurement, MemoryUse, Profile, WrittenCurve
from rlinf_core.schedule.reading import Section

TOP = ("fingerprint", "sync", "overhead_s", "components")
SYNC = ("shared_s", "apart_s")
COMPONENT = ("measurements", "curves", "memory", "sample_bytes", "weight_bytes")
TERMS = tuple(item.name for item in fields(Coefficients))
MEMORY = tuple(item.name for item in fields(MemoryUse))
WHERE = ("device_type", "model_parallel")
MEASUREMENT = ("devices", "samples", "seconds", "chunk", *WHERE)
CURVE = (*TERMS, "table", "samples", *WHERE)


def read_profile(path: Path) -> Profile:
    """A profile from a file. Raises `ConfigError` that names the file and the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"profile {path} cannot be read: {err}") from err
    return profile_from_yaml(text, str(path))


def profile_from_yaml(text: str, origin: str = "profile") -> Profile:
    """A profile from its YAML. Raises `ConfigError` that names the origin and the key."""
    top = Section(parse_yaml(text, origin, "a profile"), origin, TOP)
    sync = top.section("sync", SYNC)
    parts = dict(top.section("components").named(COMPONENT))
    return Profile(
        measurements=tuple(one for name, part in parts.items() for one in _measurements(name, part)),
        memory={name: _memory(part) for name, part in parts.items() if part.has("memory")},
        sample_bytes=_numbers(parts, "sample_bytes"),
        weight_bytes=_numbers(parts, "weight_bytes"),
        sync_shared_s=sync.number("shared_s", 0.0),
        sync_apart_s=sync.number("apart_s", 0.0),
        overhead_s=top.number("overhead_s", 0.0),
        fingerprint=_fingerprint(top),
        curves=tuple(one for name, part in parts.items() for one in _curves(name, part)),
    )


def _numbers(parts: dict[str, Section], key: str) -> dict[str, float]:
    return {name: part.number(key) for name, part in parts.items() if part.has(key)}


def _fingerprint(top: Section) -> str:
    given = top.values.get("fingerprint", "")
    return given if isinstance(given, str) else json.dumps(top.section("fingerprint").values, sort_keys=True)


def _measurements(component: str, part: Section) -> Iterator[Measurement]:
    for one in part.sections("measurements", MEASUREMENT):
        measured = Measurement(
            component,
            one.whole("devices", least=1),
            one.whole("samples", least=1),
            one.number("seconds"),
            one.whole("chunk", 0),
            one.text("device_type", "cpu"),
            one.whole("model_parallel", 1, least=1),
        )
        if measured.devices % measured.model_parallel:
            raise ConfigError(
                f"{one.at('devices')}: needs a multiple of model_parallel {measured.model_parallel}, "
                f"got {measured.devices}"
            )
        yield measured


def _curves(component: str, part: Section) -> Iterator[WrittenCurve]:
    seen = set()
    for one in part.sections("curves", CURVE):
        law = _table(one) if one.has("table") else _coefficients(one)
        curve = WrittenCurve(
            component, law, one.text("device_type", "cpu"), one.whole("model_parallel", 1, least=1)
        )
        if (curve.device_type, curve.model_parallel) in seen:
            raise ConfigError(
                f"{one.where}: a second curve of {component} on {curve.device_type!r} with model_parallel "
                f"{curve.model_parallel}; keep one of them"
            )
        seen.add((curve.device_type, curve.model_parallel))
        yield curve


def _coefficients(one: Section) -> Coefficients:
    if one.has("samples"):
        raise ConfigError(f"{one.at('samples')}: belongs to a table, and none is given")
    if not any(one.has(term) for term in TERMS):
        raise ConfigError(f"{one.where}: needs a table, or at least one of {', '.join(TERMS)}")
    return Coefficients(**{term: one.number(term, 0.0) for term in TERMS})


def _table(one: Section) -> Table:
    if both := [term for term in TERMS if one.has(term)]:
        raise ConfigError(f"{one.at(both[0])}: a curve is a table or coefficients, and a table is given too")
    table = one.section("table")
    times = {}
    for count, seconds in table.numbers().items():
        if not count.isdecimal() or int(count) < 1:
            raise ConfigError(f"{table.at(count)}: needs a number of devices of 1 or more as its key")
        times[int(count)] = seconds
    if not times:
        raise ConfigError(f"{table.where}: needs at least one 'devices: seconds'")
    return Table(one.whole("samples", least=1), tuple(sorted(times.items())))


def _memory(part: Section) -> MemoryUse:
    memory = part.section("memory", MEMORY)
    return MemoryUse(**{name: memory.number(name, 0.0) for name in MEMORY})


def profile_to_yaml(profile: Profile) -> str:
    """YAML that reads back to the same profile."""
    lines = []
    if profile.fingerprint:
        lines.append(f"fingerprint: {_written_fingerprint(profile.fingerprint)}")
    if profile.sync_shared_s or profile.sync_apart_s:
        lines.append(f"sync: {_flow({'shared_s': profile.sync_shared_s, 'apart_s': profile.sync_apart_s})}")
    if profile.overhead_s:
        lines.append(f"overhead_s: {json.dumps(profile.overhead_s)}")
    lines.append("components:")
    for name in _components(profile):
        lines += [f"  {name}:", *_component_lines(profile, name)]
    return "\n".join(lines) + "\n"


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile to a file, whole or not at all."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(profile_to_yaml(profile), encoding="utf-8")
    draft.replace(path)


def _components(profile: Profile) -> list[str]:
    measured = [one.component for one in profile.measurements]
    written = [one.component for one in profile.curves]
    return list(
        dict.fromkeys([*measured, *written, *profile.memory, *profile.sample_bytes, *profile.weight_bytes])
    )


def _component_lines(profile: Profile, name: str) -> Iterator[str]:
    if name in profile.memory:
        yield f"    memory: {_flow(_set(asdict(profile.memory[name]), MemoryUse()))}"
    for key in ("sample_bytes", "weight_bytes"):
        if name in getattr(profile, key):
            yield f"    {key}: {json.dumps(getattr(profile, key)[name])}"
    curves = [one for one in profile.curves if one.component == name]
    if curves:
        yield from ("    curves:", *(f"      - {_flow(_curve(one))}" for one in curves))
    measured = [one for one in profile.measurements if one.component == name]
    if measured:
        yield "    measurements:"
        for one in measured:
            values = {key: value for key, value in asdict(one).items() if key != "component"}
            yield f"      - {_flow(_set(values, Measurement('', 0, 0, -1.0)))}"


def _curve(one: WrittenCurve) -> dict[str, Any]:  # Any: YAML values
    where = {"device_type": one.device_type, "model_parallel": one.model_parallel}
    if isinstance(one.law, Table):
        return {**where, "samples": one.law.samples, "table": dict(one.law.by_devices)}
    return {**where, **asdict(one.law)}


def _set(values: dict[str, Any], default: object) -> dict[str, Any]:
    """The values that differ from the default's."""
    return {key: value for key, value in values.items() if value != getattr(default, key)}


def _written_fingerprint(text: str) -> str:
    """A mapping where it is one, so that a person sees its parts."""
    try:
        parts = json.loads(text)
    except json.JSONDecodeError:
        return json.dumps(text)
    return text if isinstance(parts, dict) else json.dumps(text)


def _flow(values: dict[str, Any]) -> str:
    """A mapping on one line; numbers as keys stay numbers."""
    shown = (f"{key}: {_flow(v) if isinstance(v, dict) else json.dumps(v)}" for key, v in values.items())
    return "{" + ", ".join(shown) + "}"
