"""Discovery, checking and conflicts of plugins, over invented entry points."""

from __future__ import annotations

import sys
from dataclasses import dataclass, make_dataclass, replace
from types import SimpleNamespace

import pytest

from rlinf_core.api import AlgorithmNeeds
from rlinf_core.checkup.health import health
from rlinf_core.errors import PluginError, PluginNotFoundError
from rlinf_core.plugins import AlgorithmSpec, Offer, PluginManager, RewardSpec, hookimpl
from rlinf_core.plugins.kinds import SPECS, kind_named


@dataclass(frozen=True)
class Config:
    size: int = 1


GRPO = AlgorithmSpec(
    name="grpo", summary="Groups", target="json:JSONDecoder", config=Config, needs=lambda _: AlgorithmNeeds()
)


def registering(*specs: object) -> SimpleNamespace:
    """A plugin module that offers these."""

    @hookimpl
    def rlinf_register_algorithms():
        return list(specs)

    return SimpleNamespace(rlinf_register_algorithms=rlinf_register_algorithms)


def offer(name: str, module: object, distribution: str = "rlinf-algo-x") -> Offer:
    def load() -> object:
        if isinstance(module, Exception):
            raise module
        return module

    return Offer(name, distribution, "1.2", load)


def manager(*offers: Offer, kind: str = "algorithms") -> PluginManager:
    return PluginManager(lambda asked: list(offers) if asked == kind else [])


def test_names_are_read_without_importing_anything():
    assert manager(offer("ppo", RuntimeError()), offer("grpo", RuntimeError())).names("algorithms") == [
        "grpo",
        "ppo",
    ]


def test_one_module_may_register_several_names():
    module = registering(GRPO, replace(GRPO, name="dapo"))
    found = manager(offer("grpo", module), offer("dapo", module))
    assert found.get("algorithms", "dapo").name == "dapo"
    assert found.get("algorithms", "grpo") is GRPO


def test_an_unknown_name_lists_the_known_ones_and_the_nearest():
    with pytest.raises(PluginNotFoundError) as caught:
        manager(offer("grpo", registering(GRPO)), offer("ppo", registering())).get("algorithms", "grop")
    assert str(caught.value) == (
        "no algorithms plugin 'grop'; installed: grpo, ppo. Did you mean 'grpo'? "
        "A plugin that is not installed may come with: pip install rlinf-algo-grop; "
        "one of your own: pip install -e its folder"
    )


def test_an_unknown_kind_is_refused():
    with pytest.raises(
        PluginNotFoundError, match=r"no kind of plugin 'algorithm'; .*Did you mean 'algorithms'"
    ):
        manager().names("algorithm")


def test_two_distributions_with_one_name_are_refused_with_both_named():
    module = registering(GRPO)
    both = manager(offer("grpo", module, "rlinf-algo-a"), offer("grpo", module, "rlinf-algo-b"))
    with pytest.raises(PluginError, match=r"offered by rlinf-algo-a 1.2 and rlinf-algo-b 1.2"):
        both.get("algorithms", "grpo")
    assert [info.status for info in both.info("algorithms")] == ["conflict", "conflict"]


def test_a_broken_plugin_hurts_only_those_who_name_it():
    cause = ImportError("libfoo.so is missing")
    found = manager(offer("grpo", registering(GRPO)), offer("rotten", cause, "rlinf-algo-rotten"))
    assert found.get("algorithms", "grpo") is GRPO
    with pytest.raises(
        PluginError, match=r"rotten.*rlinf-algo-rotten.*ImportError: libfoo.so is missing"
    ) as caught:
        found.get("algorithms", "rotten")
    assert caught.value.__cause__ is cause
    good, rotten = found.info("algorithms")
    assert (good.status, rotten.status) == ("ok", "broken")
    assert "libfoo.so" in rotten.reason


def misspelt() -> SimpleNamespace:
    @hookimpl
    def rlinf_register_algorithm():
        return []

    return SimpleNamespace(rlinf_register_algorithm=rlinf_register_algorithm)


def wrong_arguments() -> SimpleNamespace:
    @hookimpl
    def rlinf_step_end(steps):
        return None

    return SimpleNamespace(rlinf_step_end=rlinf_step_end)


def raising() -> SimpleNamespace:
    @hookimpl
    def rlinf_register_algorithms():
        raise ZeroDivisionError("oh")

    return SimpleNamespace(rlinf_register_algorithms=rlinf_register_algorithms)


def returning_one() -> SimpleNamespace:
    @hookimpl
    def rlinf_register_algorithms():
        return GRPO

    return SimpleNamespace(rlinf_register_algorithms=rlinf_register_algorithms)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (registering(), "returned nothing"),
        (registering(replace(GRPO, name="gprо")), "the entry-point name and the spec's name must be equal"),
        (registering(GRPO, GRPO), "registered once"),
        (registering(RewardSpec(name="grpo", summary="", target="a:B")), "returned a RewardSpec"),
        (registering(replace(GRPO, config=int)), "is not a dataclass"),
        (registering(replace(GRPO, config=Config())), "is not a dataclass"),
        (
            registering(replace(GRPO, config=make_dataclass("Mine", ["name"]))),
            "a field .name., which",
        ),
        (registering(replace(GRPO, target="json.JSONDecoder")), "is not of the form module:Class"),
        (registering(replace(GRPO, api=">=2.0")), r"API >=2.0, this rlinf offers 1.0"),
        (registering(replace(GRPO, api="two")), "api 'two' is not a version range"),
        (misspelt(), "rlinf_register_algorithm"),
        (wrong_arguments(), "steps"),
        (raising(), "ZeroDivisionError: oh"),
        (returning_one(), "returned AlgorithmSpec; it has to return a list"),
    ],
)
def test_a_wrong_registration_is_refused_with_what_is_wrong(module, message):
    with pytest.raises(PluginError, match=message) as caught:
        manager(offer("grpo", module)).get("algorithms", "grpo")
    assert "algorithms plugin 'grpo' (rlinf-algo-x 1.2)" in str(caught.value)


def test_observers_hear_events_and_may_leave_out_arguments():
    heard = []

    @hookimpl
    def rlinf_step_end(step, metrics):
        heard.append((step, metrics))

    hooks = manager(
        offer("ear", SimpleNamespace(rlinf_step_end=rlinf_step_end)), kind="observers"
    ).observers()
    hooks.rlinf_step_end(run=None, step=3, metrics={"loss": 1.0})
    hooks.rlinf_run_end(run=None, error=None)
    assert heard == [(3, {"loss": 1.0})]


def test_a_broken_observer_is_left_out_with_a_warning():
    found = manager(offer("deaf", ImportError("no ears")), kind="observers")
    with pytest.warns(RuntimeWarning, match="deaf.*no ears.*observes nothing"):
        found.observers()
    found.observers().rlinf_run_start(run=None)
    assert found.info("observers")[0].status == "broken"


def test_every_kind_has_a_register_hook_with_a_complete_example():
    from rlinf_core.plugins import hookspecs

    for kind in SPECS:
        hook = getattr(hookspecs, f"rlinf_register_{kind}")
        example = hook.__doc__.split("```python")[1].split("```")[0]
        assert "@hookimpl" in example
        compile("\n".join(line[4:] for line in example.splitlines()), kind, "exec")


def test_kinds_are_accepted_in_singular_plural_and_short():
    assert [kind_named(text) for text in ("algorithm", "algorithms", "algo", "sim", "Simulators")] == [
        "algorithms",
        "algorithms",
        "algorithms",
        "simulators",
        "simulators",
    ]
    with pytest.raises(PluginNotFoundError, match="Did you mean 'reward'"):
        kind_named("rewad")


def test_the_installed_builtins_are_found_and_working():
    found = PluginManager()
    assert {"inline", "local"} <= set(found.names("engines"))
    core = [info for kind in SPECS for info in found.info(kind) if info.distribution == "rlinf-core"]
    assert [info.reason for info in core if info.status != "ok"] == []


def test_this_room_imports_no_torch():
    import subprocess

    code = (
        "import sys, rlinf_core.plugins; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def installed_with(tmp_path, monkeypatch, entry_points):
    """A distribution `rlinf-algo-mine` whose metadata says so."""
    made = tmp_path / "rlinf_algo_mine-0.1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: rlinf-algo-mine\nVersion: 0.1\n")
    (made / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_misspelled_entry_point_group_is_told_to_who_asks_for_the_plugin(tmp_path, monkeypatch):
    installed_with(tmp_path, monkeypatch, "[rlinf.algorithm]\nmine = rlinf_algo_mine.plugin\n")
    with pytest.raises(PluginNotFoundError) as caught:
        PluginManager().get("algorithms", "mine")
    assert "rlinf-algo-mine offers 'mine' as 'rlinf.algorithm', which is no entry-point group" in str(
        caught.value
    )
    assert "Did you mean 'rlinf.algorithms'?" in str(caught.value)
    assert "pip install rlinf-algo-mine" not in str(caught.value)
    (found,) = [each for each in health() if each.state == "broken"]
    assert found.name == "rlinf.algorithm mine"
    assert "which is no entry-point group" in found.detail


def test_a_class_that_needs_a_missing_package_says_so_and_where(tmp_path, monkeypatch):
    (tmp_path / "rlinf_algo_lame.py").write_text("import math\nimport no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError) as caught:
        replace(GRPO, name="lame", target="rlinf_algo_lame:Lame").load()
    said = str(caught.value)
    assert said.startswith("algorithms plugin 'lame': its target 'rlinf_algo_lame:Lame' does not load: ")
    assert "No module named 'no_such_package' (rlinf_algo_lame.py:2 in <module>). Install what" in said
