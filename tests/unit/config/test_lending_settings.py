"""Which runs lend idle devices within a step, to what, and why others cannot."""

from __future__ import annotations

import pytest

from rlinf_core.config.check import check
from rlinf_core.config.lending import lent_to, piece_tokens, refuse_ordered, unit_groups
from rlinf_core.errors import ConfigError

TASK = "model: {name: hf_lm, preset: tiny}\ndata: sort_digits\nreward: exact\n"
IN_STEP = "schedule.dynamic=in-step"


@pytest.mark.parametrize("word", ["off", "step", "in-step"])
def test_the_words_are_read_also_where_yaml_takes_one_for_a_truth_value(run, tmp_path, word):
    assert run(f"schedule.dynamic={word}").schedule.dynamic == word
    (tmp_path / "own.yaml").write_text(f"{TASK}schedule: {{dynamic: {word}}}\n")
    assert run(config=(tmp_path / "own.yaml",)).schedule.dynamic == word


def test_other_words_are_refused(problems):
    (line,) = problems("schedule.dynamic=within")
    assert line.startswith("schedule.dynamic: needs one of off, step, in-step, got 'within'")
    (line,) = problems("schedule.dynamic=true")
    assert line.startswith("schedule.dynamic: needs one of off, step, in-step, got True")


def needs(config, manager):
    return manager.get("algorithms", config.algo.name).needs(config.algo.config)


@pytest.mark.parametrize(
    ("words", "lent"),
    [
        ((), "training"),
        (("algo.reference=true",), "training"),
        (("algo.reference=true", "train.mini_batches=2"), "reference"),
        (("algo.reference=true", "algo.critic=own", "model=hf_lm"), "reference"),
    ],
)
def test_devices_are_lent_to_training_or_else_to_the_reference(run, manager, words, lent):
    config = run(IN_STEP, *words)
    assert lent_to(config, needs(config, manager)) == lent
    for other in ("off", "step"):
        config = run(f"schedule.dynamic={other}", *words)
        assert lent_to(config, needs(config, manager)) == "nothing"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("train.mini_batches=2",), "several optimizer steps need all samples of a step"),
        (("train.update_epochs=2",), "several optimizer steps need all samples of a step"),
        (("algo=asking", "algo.rounds=3"), "algorithm 'asking' selects groups before any is trained"),
        (("backend=headless",), "the ranks of backend 'headless' wait for each other in every micro-batch"),
    ],
)
def test_what_leaves_nothing_to_lend_is_refused_with_the_reason(refused, words, reason):
    (line,) = refused(IN_STEP, *words)
    assert line.startswith("schedule.dynamic: in-step ")
    assert reason in line
    assert line.endswith("; set schedule.dynamic=step (from override)")


def test_trainers_that_turn_out_to_be_sharded_are_refused(run):
    refuse_ordered(run(IN_STEP), [True, True])
    with pytest.raises(ConfigError, match=r"backend 'fsdp' wait .* let every rank hold the whole model"):
        refuse_ordered(run(IN_STEP), [True, False])


def test_a_unit_is_a_sixty_fourth_of_a_step_or_what_is_said_in_whole_groups(run, manager):
    def groups(*words: str) -> int:
        config = run(IN_STEP, "algo.group_size=8", *words)
        return unit_groups(config, needs(config, manager))

    assert groups("train.prompts_per_step=32") == 1
    assert groups("train.prompts_per_step=512") == 8
    assert groups("train.prompts_per_step=32", "schedule.chunk=16") == 2
    assert check(run(IN_STEP, "algo.group_size=8", "schedule.chunk=16", mode="collocated"), manager) == []


def test_units_are_trained_in_pieces_where_nothing_else_is_computed_of_their_rows_first(run, manager):
    def tokens(*words: str) -> int:
        config = run(IN_STEP, "train.micro_batch_tokens=640", *words)
        return piece_tokens(config, needs(config, manager))

    assert tokens() == 640
    assert tokens("algo.reference=true") == tokens("algo.critic=head") == 0
    assert tokens("train.old_logprobs=recompute") == 0
