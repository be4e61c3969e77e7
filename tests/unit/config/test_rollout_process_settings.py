"""What is said of settings of rollout engines in processes of their own."""

from __future__ import annotations

import pytest

from rlinf_core.config.check import check
from rlinf_core.config.check_isolation import require_packages
from rlinf_core.errors import PluginError
from rlinf_core.plugins import Isolation, RolloutSpec


@pytest.fixture
def warned(run, manager):
    return lambda *overrides, **flags: check(run(*overrides, **flags), manager)


def test_an_environment_that_is_not_there_is_refused_where_it_is_insisted_on(refused):
    assert refused("rollout_process.isolated=always") == [
        "rollout_process.isolated: rollout 'hf' has no environment of its own here; it offers none; set "
        "rollout_process.isolated=auto (from override)"
    ]
    assert refused("rollout_process.timeout_s=0") == [
        "rollout_process.timeout_s: must be above 0, got 0.0 (from override)"
    ]


def test_settings_of_a_process_that_there_is_none_of_are_warned_of(warned):
    assert (
        "rollout_process.timeout_s: has no effect: rollout 'hf' has no process of its own (from override)"
        in (warned("rollout_process.timeout_s=7"))
    )


def test_an_embodied_task_has_no_rollout_process(refused):
    assert refused("rollout_process.timeout_s=7", simulator="line", model="mlp") == [
        "rollout_process: an embodied task does not use it; remove it (from override)"
    ]


def test_packages_that_are_missing_are_named_with_the_line_that_installs_them(run, tmp_path, monkeypatch):
    package = tmp_path / "far_engine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "lock.txt").write_text("far==1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLINF_ENVIRONMENTS", str(tmp_path / "none"))
    spec = RolloutSpec(
        name="far",
        summary="",
        target="far_engine.engine:Far",
        isolation=Isolation(lock="far_engine/lock.txt", imports=("far_library.sub", "json")),
    )

    class Manager:
        def get(self, kind: str, name: str) -> RolloutSpec:
            return spec

    with pytest.raises(
        PluginError, match=r"'far' would run .* lacks far_library; .* install far --isolated`$"
    ):
        require_packages(run(), Manager())
    with pytest.raises(PluginError, match=r"install far --isolated` and set rollout_process.isolated=auto$"):
        require_packages(run("rollout_process.isolated=never"), Manager())
