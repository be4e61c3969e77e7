"""A dumped config resolves back to itself."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rlinf_core.config.dump import diff, dump
from rlinf_core.config.reading.layers import Layer
from rlinf_core.config.resolve import load_recipe, resolve
from rlinf_core.config.show import commented_yaml, value_text

RUNS = [
    {},
    {"overrides": ("algo.schedule={start: 3, names: [a, 'null', '']}", "optimizer.lr=1e-7", "trackers=[]")},
    {"overrides": ("reward=[{name: exact, weight: 0.25}, 'm:f']",), "model": "hf_lm", "data": "org/q"},
    {"overrides": (r"sampling.stop=['\n', 'é: #', '1', '\${']",), "seed": 4},
    {"overrides": (r"output=runs/\${x}", r"model.path='a\\\${b} \d'", "model.preset='a: b'")},
    {"simulator": "line", "model": "mlp"},
]


@pytest.mark.parametrize("given", RUNS)
def test_a_dump_resolves_to_the_same_settings(run, manager, given):
    config = run(*given.get("overrides", ()), **{key: given[key] for key in given if key != "overrides"})
    dumped = json.loads(json.dumps(dump(config)))
    again = resolve([Layer(dumped, "RUN/config.yaml")], manager)
    assert replace(again, origins={}) == replace(config, origins={})
    assert dump(again) == dumped


@pytest.mark.parametrize("given", RUNS)
def test_the_shown_text_is_a_recipe_of_the_same_settings(run, manager, tmp_path, given):
    config = run(*given.get("overrides", ()), **{key: given[key] for key in given if key != "overrides"})
    path = tmp_path / "shown.yaml"
    path.write_text(commented_yaml(config))
    again = resolve([load_recipe(path)], manager)
    assert replace(again, origins={}) == replace(config, origins={})


def test_every_shown_value_has_its_origin(run):
    lines = commented_yaml(run("algo.clip_ratio=0.3", steps=3)).splitlines()
    assert any(line.split() == ["clip_ratio:", "0.3", "#", "override"] for line in lines)
    assert any(line.split() == ["steps:", "3", "#", "--steps"] for line in lines)
    assert all("#" in line or line.endswith(":") for line in lines)


@pytest.mark.parametrize("text", ["yes", "null", "1", "1e5", "a: b", "#x", "", " a", "[x]", "é\n", "0x1"])
def test_texts_that_yaml_would_read_otherwise_are_quoted(text):
    assert json.loads(value_text(text)) == text


def test_an_embodied_dump_leaves_out_what_it_does_not_use(run):
    dumped = dump(run(simulator="line", model="mlp"))
    assert not {"sampling", "data", "reward", "rollout"} & set(dumped)
    assert "max_prompt_tokens" not in dumped["train"]


def test_a_difference_names_the_key_and_both_values(run):
    old, new = dump(run()), dump(run("optimizer.lr=0.5", "reward.strip=false", "trackers=[]"))
    assert diff(old, new) == {
        "reward.0.strip": (True, False),
        "trackers.0.name": ("tensorboard", None),
        "optimizer.lr": (1e-5, 0.5),
        "trackers": (None, []),
    }
    assert diff(old, old) == {}


def test_an_empty_list_says_who_emptied_it(run):
    assert "trackers: []" in commented_yaml(run("trackers=[]"))
    assert run("trackers=[]").origins["trackers"] == "override"
