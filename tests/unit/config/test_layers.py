"""Which value wins, and where it is said to come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_core.errors import ConfigError

RECIPE = """\
algo: {name: grpo, clip_ratio: 0.1, group_size: 4}
model: {name: hf_lm, preset: tiny}
data: sort_digits
reward: [{name: exact, strip: false, weight: 2}, format]
train: {steps: 7}
"""


def terms(config):
    return [(term.component.name, term.weight) for term in config.rewards]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(RECIPE)
    return path


def test_defaults_lie_below_recipes_below_flags_below_overrides(run, recipe):
    config = run("optimizer.lr=3e-4", config=(recipe,), steps=9, lr=0.5)
    assert (config.train.steps, config.optimizer.lr, config.train.mini_batches) == (9, 3e-4, 1)
    assert config.algo.config.clip_ratio == 0.1
    origins = config.origins
    assert origins["train.steps"] == "--steps"
    assert origins["optimizer.lr"] == "override"
    assert origins["algo.clip_ratio"] == str(recipe)
    assert origins["train.mini_batches"] == "default"


def test_a_later_recipe_merges_deeply_over_a_former_one(run, recipe, tmp_path):
    later = tmp_path / "b.yaml"
    later.write_text("algo: {schedule: {start: 2}}\ntrain: {mini_batches: 2}\n")
    config = run("algo.schedule.names=[x, y]", config=(recipe, later))
    assert config.algo.config.clip_ratio == 0.1
    assert (config.algo.config.schedule.start, config.algo.config.schedule.names) == (2.0, ("x", "y"))
    assert (config.train.steps, config.train.mini_batches) == (7, 2)
    assert config.origins["algo.schedule.start"] == str(later)


def test_another_name_drops_the_options_of_the_former_plugin(run, recipe):
    config = run(config=(recipe,), algo="plain")
    assert config.algo.name == "plain"
    assert "algo.clip_ratio" not in config.origins


def test_the_same_name_keeps_the_options(run, recipe):
    assert run(config=(recipe,), algo="grpo").algo.config.group_size == 4


def test_a_path_given_for_a_model_takes_the_place_of_the_recipes_preset(run, recipe):
    config = run(config=(recipe,), model="./weights/base")
    assert (config.model.name, config.model.config.path, config.model.config.preset) == (
        "hf_lm",
        "./weights/base",
        "",
    )


@pytest.mark.parametrize(
    ("given", "plugin"), [("q.jsonl", "jsonl"), ("dir/q.jsonl", "jsonl"), ("org/questions", "hf")]
)
def test_a_data_place_is_read_by_its_suffix(run, given, plugin):
    config = run(data=given, model="hf_lm", reward=("exact",))
    assert (config.data.name, config.data.config.path) == (plugin, given)


@pytest.mark.parametrize("target", ["my_package.my_module:score", "./score.py:score"])
def test_a_function_is_a_reward(run, target):
    config = run(f"reward=[{{name: '{target}', weight: 0.5}}, exact]", model="hf_lm")
    assert [(term.component.name, term.weight) for term in config.rewards] == [
        ("python", 0.5),
        ("exact", 1.0),
    ]
    assert config.rewards[0].component.config.target == target


def test_several_rewards_keep_their_weights_and_an_index_picks_one(run, recipe):
    config = run("reward.0.weight=3", "reward.0.strip=true", config=(recipe,))
    assert [(term.component.name, term.weight) for term in config.rewards] == [
        ("exact", 3.0),
        ("format", 1.0),
    ]
    assert config.rewards[0].component.config.strip is True
    assert config.origins["reward.0.strip"] == "override"


def test_options_of_the_only_reward_need_no_index(run):
    assert run("reward.strip=false").rewards[0].component.config.strip is False


def test_options_of_several_rewards_need_an_index(problems, recipe):
    assert problems("reward.strip=false", config=(recipe,)) == [
        "reward: there are 2; say which one, such as reward.0.strip (from override)"
    ]


def test_reward_flags_replace_the_rewards_of_a_recipe(run, recipe):
    config = run(config=(recipe,), reward=("format",))
    assert [term.component.name for term in config.rewards] == ["format"]


def test_trackers_can_be_none(run):
    assert run("trackers=[]").trackers == ()
    assert run("trackers=tensorboard").trackers[0].name == "tensorboard"


def test_the_rollout_engine_is_the_backends_unless_named(run):
    assert run().rollout.name == "hf"
    assert run(rollout="bare").rollout.name == "bare"


def test_without_a_task_the_quickstart_is_run(run):
    config = run()
    assert config.data is not None
    assert config.rewards
    assert config.origins["data.name"] == "quickstart recipe"


@pytest.mark.parametrize("said", ["model=hf_lm", "data=sort_digits", "reward=exact"])
def test_naming_a_part_of_the_task_sets_the_quickstart_aside(problems, run, said):
    without_model = said != "model=hf_lm"
    if without_model:
        assert any(line.startswith("model: no plugin is named") for line in problems(said))
    else:
        assert run(said).data is None


def test_a_relative_file_may_lie_beside_the_recipe(run, tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "recipes", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "q.jsonl").write_text("{}")
    (folder / "r.yaml").write_text("model: hf_lm\nreward: exact\ndata: {name: jsonl, path: q.jsonl}\n")
    monkeypatch.chdir(elsewhere)
    assert run(config=(folder / "r.yaml",)).data.config.path == str(folder / "q.jsonl")
    (elsewhere / "q.jsonl").write_text("{}")
    assert run(config=(folder / "r.yaml",)).data.config.path == "q.jsonl"


def test_values_may_refer_to_other_values_and_the_environment(run, monkeypatch):
    monkeypatch.setenv("RUNS", "/data/runs")
    config = run("train.steps=12", "eval.every=${train.steps}", "output=${oc.env:RUNS}/a")
    assert (config.eval.every, config.output) == (12, "/data/runs/a")


def test_a_broken_reference_names_the_key(run):
    with pytest.raises(ConfigError, match=r"eval\.every: .*train\.step"):
        run("eval.every=${train.step}")


def test_a_recipe_that_is_missing_is_named_with_the_folder_looked_in(run):
    with pytest.raises(ConfigError, match=r"recipe nowhere\.yaml does not exist \(looked in /"):
        run(config=(Path("nowhere.yaml"),))


def test_a_syntax_error_names_file_and_line(run, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("train:\n  steps: 3\n  lr: [1\nseed: 2\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml, line 4: not valid YAML"):
        run(config=(path,))


def test_a_key_written_twice_names_its_line(run, tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("train:\n  steps: 3\n  steps: 4\n")
    with pytest.raises(ConfigError, match=r"twice\.yaml, line 3"):
        run(config=(path,))


@pytest.mark.parametrize("text", ["- a\n", "just text\n"])
def test_a_recipe_that_is_no_mapping_is_refused(run, tmp_path, text):
    path = tmp_path / "list.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"list\.yaml"):
        run(config=(path,))


def test_an_empty_recipe_says_nothing(run, tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("")
    with pytest.raises(ConfigError, match="model: no plugin is named"):
        run(config=(path,))


def test_an_override_without_a_value_is_explained(run):
    with pytest.raises(ConfigError, match="'steps' is not an override; write KEY=VALUE"):
        run("steps")


def test_a_minimal_recipe_is_short(run, tmp_path):
    path = tmp_path / "minimal.yaml"
    path.write_text(
        "algo: {name: grpo, group_size: 16}\n"
        "model: org/base-0.5b\n"
        "data: org/questions\n"
        "reward: exact\n"
        "train: {steps: 200, prompts_per_step: 16}\n"
        "optimizer: {lr: 1e-6}\n"
        "sampling: {max_new_tokens: 512}\n"
    )
    config = run(config=(path,))
    assert (config.optimizer.lr, config.model.config.path, config.backend.name) == (
        1e-6,
        "org/base-0.5b",
        "fsdp",
    )


def test_an_override_whose_value_is_no_yaml_is_explained_on_one_line(run):
    with pytest.raises(ConfigError, match=r"^override 'sampling.stop=\[a': the value is not valid YAML: .*$"):
        run("sampling.stop=[a")


def test_what_a_model_suggests_lies_above_the_defaults_and_below_all_that_is_said(run):
    assert run(model="hf_lm", data="sort_digits", reward=("exact",)).optimizer.grad_clip == 1.0
    config = run("optimizer.grad_clip=2.0", model="mlp", simulator="line")
    assert config.optimizer.lr == 0.25
    assert config.origins["optimizer.lr"] == "model mlp"
    assert config.optimizer.grad_clip == 2.0
