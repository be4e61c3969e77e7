from __future__ import annotations

import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.schedule.curve import Coefficients, Table
from rlinf_core.schedule.profile import Measurement, MemoryUse, Profile, WrittenCurve, fingerprint
from rlinf_core.schedule.profile_yaml import (
    profile_from_yaml,
    profile_to_yaml,
    read_profile,
    write_profile,
)

FULL = Profile(
    measurements=(
        Measurement("rollout", 1, 64, 3.25),
        Measurement("rollout", 2, 64, 1.5e-05, 16, "H100", 2),
        Measurement("actor", 1, 64, 0.0),
    ),
    memory={"actor": MemoryUse(1e9, 2.5e9, 1e6, 0.5, 0.25), "rollout": MemoryUse()},
    sample_bytes={"rollout": 2048.0},
    weight_bytes={"actor": 270e6},
    sync_shared_s=0.01,
    sync_apart_s=0.2,
    fingerprint=fingerprint(hardware="2 x cpu", model="tiny: 'x'", samples=64),
    curves=(
        WrittenCurve("critic", Coefficients(0.5, 0.02, 0.0, 0.1), "A100"),
        WrittenCurve("critic", Table(512, ((1, 100.0), (8, 20.0))), "H100", 4),
    ),
)


def test_a_profile_reads_back_as_it_was_written(tmp_path):
    write_profile(FULL, tmp_path / "profile.yaml")
    assert read_profile(tmp_path / "profile.yaml") == FULL
    assert [path.name for path in tmp_path.iterdir()] == ["profile.yaml"]


@pytest.mark.parametrize("profile", [Profile(), Profile(fingerprint="by hand: 1")])
def test_an_empty_profile_reads_back_too(profile):
    assert profile_from_yaml(profile_to_yaml(profile)) == profile


def test_a_profile_written_by_hand():
    profile = profile_from_yaml(
        """
        components:
          rollout:
            sample_bytes: 4e3
            memory: {fixed_bytes: 20e9, onload_s: 2}
            curves:
              - {device_type: H100, samples: 512, table: {1: 100, 4: 25, 8: 20}}
              - {device_type: A100, per_sample_s: 0.5}
          actor:
            weight_bytes: 14e9
            measurements:
              - {devices: 2, samples: 512, seconds: 40, chunk: 8}
        """
    )
    assert profile.curve("rollout", "H100").seconds(512, 4) == pytest.approx(25)
    assert profile.curve("rollout", "A100").seconds(512, 8) == pytest.approx(32)
    assert profile.curve("actor", "cpu").seconds(512, 2, 8) == pytest.approx(40)
    assert profile.memory == {"rollout": MemoryUse(fixed_bytes=20e9, onload_s=2.0)}
    assert (profile.sample_bytes, profile.weight_bytes) == ({"rollout": 4000.0}, {"actor": 14e9})
    assert profile.fingerprint == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "component: {}",
            r"p\.yaml: unknown key 'component'; allowed: fingerprint, sync, overhead_s, components\. Did you",
        ),
        ("components: [a]", r"p\.yaml: components: needs a mapping of keys to values, got \['a'\]"),
        ("components: {a: 3}", r"p\.yaml: components\.a: needs a mapping of keys to values, got 3"),
        (
            "components: {a: {memory: {fixed: 1}}}",
            r"components\.a\.memory: unknown key 'fixed'; allowed: fixed_bytes, sharded_bytes, off",
        ),
        (
            "components: {a: {sample_bytes: -1}}",
            r"components\.a\.sample_bytes: needs a number of 0 or more, got -1",
        ),
        ("components: {a: {weight_bytes: true}}", r"a\.weight_bytes: needs a number of 0 or more, got True"),
        ("components: {a: {weight_bytes: .inf}}", r"a\.weight_bytes: needs a number of 0 or more, got inf"),
        ("components: {a: {measurements: 3}}", r"components\.a\.measurements: needs a list, got 3"),
        (
            "components: {a: {measurements: [{devices: 1, samples: 2}]}}",
            r"components\.a\.measurements\.0\.seconds: must be given",
        ),
        (
            "components: {a: {measurements: [{devices: 0, samples: 2, seconds: 1}]}}",
            r"measurements\.0\.devices: needs a whole number of 1 or more, got 0",
        ),
        (
            "components: {a: {measurements: [{devices: 3, samples: 2, seconds: 1, model_parallel: 2}]}}",
            r"measurements\.0\.devices: needs a multiple of model_parallel 2, got 3",
        ),
        (
            "components: {a: {measurements: [{devices: 1, samples: 2, seconds: 1, device_type: 4}]}}",
            r"measurements\.0\.device_type: needs a text, got 4",
        ),
        (
            "components: {a: {curves: [{}]}}",
            r"curves\.0: needs a table, or at least one of fixed_s, per_samp",
        ),
        (
            "components: {a: {curves: [{fixed_s: 1, samples: 3}]}}",
            r"curves\.0\.samples: belongs to a table, and none is given",
        ),
        (
            "components: {a: {curves: [{fixed_s: 1, samples: 3, table: {1: 2}}]}}",
            r"curves\.0\.fixed_s: a curve is a table or coefficients, and a table is given too",
        ),
        (
            "components: {a: {curves: [{samples: 3, table: {x: 2}}]}}",
            r"curves\.0\.table\.x: needs a number of devices of 1 or more as its key",
        ),
        (
            "components: {a: {curves: [{samples: 3, table: {}}]}}",
            r"table: needs at least one 'devices: seconds'",
        ),
        (
            "components: {a: {curves: [{fixed_s: 1}, {per_call_s: 1}]}}",
            r"curves\.1: a second curve of a on 'cpu' with model_parallel 1; keep one of them",
        ),
        ("sync: {shared_s: never}", r"p\.yaml: sync\.shared_s: needs a number of 0 or more, got 'never'"),
        ("- a", r"p\.yaml: a profile is a mapping of keys to values, this is a list"),
        ("a: [", r"p\.yaml, line 2: not valid YAML"),
    ],
)
def test_what_does_not_fit_is_named_with_file_and_key(text, message):
    with pytest.raises(ConfigError, match=message):
        profile_from_yaml(text, "p.yaml")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"profile .*none\.yaml cannot be read: .*No such file"):
        read_profile(tmp_path / "none.yaml")
