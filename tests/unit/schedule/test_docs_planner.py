"""The examples of the page of planning are what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlinf_core.errors import ConfigError
from rlinf_core.schedule.drift import DriftRule
from rlinf_core.schedule.plan_yaml import plan_from_yaml
from rlinf_core.schedule.profile_yaml import COMPONENT, profile_from_yaml

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "planner.md").read_text()
FILES = dict(re.findall(r'```yaml title="([^"]+)"\n(.*?)```', PAGE, re.DOTALL))


def test_the_profile_of_the_page_is_one():
    profile = profile_from_yaml(FILES["profile.yaml"])
    assert profile.device_types("rollout") == ("H100", "A100")
    assert profile.curve("rollout", "H100").seconds(4096, 32) == pytest.approx(61)


def test_the_plan_of_the_page_is_one():
    plan = plan_from_yaml(FILES["plan.yaml"])
    assert (plan.mode, plan.stages, plan.assignments["rollout"].resident) == ("hybrid", 2, False)


def test_the_python_of_the_page_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == "disaggregated (0, 1, 2)\n"


def test_the_errors_of_the_page_are_those_that_come():
    first, second = re.findall(r"^profile\.yaml: .*$", PAGE, re.MULTILINE)
    with pytest.raises(ConfigError) as caught:
        profile_from_yaml("components: {actor: {memory: {fixed: 1}}}", "profile.yaml")
    assert str(caught.value).startswith(first.removesuffix("..."))
    with pytest.raises(ConfigError) as caught:
        profile_from_yaml("components: {rollout: {measurements: [{devices: 1, samples: 1}]}}", "profile.yaml")
    assert str(caught.value) == second


def test_every_key_of_a_component_is_on_the_page():
    for key in COMPONENT:
        assert f"`components.NAME.{key}`" in PAGE


def test_the_numbers_of_the_rule_are_those_of_the_page():
    rule = DriftRule()
    assert (rule.tolerance, rule.window, rule.min_gain, rule.settle, rule.cool_down) == (0.2, 10, 0.1, 2, 20)
    assert rule.agreeing * rule.window == 9
