"""Datasets whose rows are computed: right answers, disjoint splits, imperfect demonstrations."""

from __future__ import annotations

import re

import pytest

from rlinf_core.api.reward import RewardItem, RewardResult
from rlinf_core.builtin.datasets.arithmetic import Arithmetic
from rlinf_core.builtin.datasets.config import ArithmeticConfig, ReasoningGymConfig, SortDigitsConfig
from rlinf_core.builtin.datasets.sort_digits import SortDigits
from rlinf_core.builtin.rewards.config import ReasoningGymRewardConfig
from rlinf_core.errors import ConfigError, DataError


def test_sorted_digits_have_the_right_answer_and_half_wrong_demonstrations() -> None:
    rows = [SortDigits(SortDigitsConfig(), "train", 0)[i] for i in range(2000)]
    wrong = 0
    for row in rows:
        digits = str(row.prompt)[:-1]
        assert re.fullmatch(r"\d{6}=", str(row.prompt))
        assert row.answer == "".join(sorted(digits))
        assert row.demonstration in (row.answer, digits, row.answer[::-1])
        wrong += row.demonstration != row.answer
    assert 0.45 < wrong / len(rows) < 0.55
    assert len({row.prompt for row in rows}) > 1950


def test_no_evaluation_question_is_a_training_question_whatever_the_seed() -> None:
    config = SortDigitsConfig(digits=3, size=3000)  # 1000 questions only: overlap would be certain
    train = {SortDigits(config, "train", seed)[i].prompt for seed in (0, 1) for i in range(3000)}
    evaluation = {SortDigits(config, "eval", seed)[i].prompt for seed in (0, 1) for i in range(512)}
    assert len(train) > 850
    assert len(evaluation) > 40
    assert not train & evaluation


def test_rows_depend_on_seed_and_index_only() -> None:
    config = SortDigitsConfig()
    again = SortDigits(config, "train", 3)
    assert SortDigits(config, "train", 3)[77] == again[77]
    assert SortDigits(config, "train", 4)[77] != again[77]
    assert SortDigits(config, "train", 4).fingerprint() != again.fingerprint()
    with pytest.raises(IndexError):
        again[len(again)]


@pytest.mark.parametrize(("operator", "width"), [("+", 3), ("-", 3), ("*", 4)])
def test_arithmetic_answers_are_right_and_of_one_width(operator: str, width: int) -> None:
    dataset = Arithmetic(ArithmeticConfig(operator=operator, noise=0.0), "train", 0)
    for i in range(300):
        row = dataset[i]
        left, right = map(int, str(row.prompt)[:-1].split(operator))
        assert int(row.answer) == {"+": left + right, "-": left - right, "*": left * right}[operator]
        assert len(row.answer) == width
        assert row.demonstration == row.answer


def test_impossible_settings_of_computed_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.noise of sort_digits must be between 0 and 1; got 1.5"):
        SortDigitsConfig(noise=1.5)
    with pytest.raises(ConfigError, match=r"data.eval_size"):
        ArithmeticConfig(eval_size=0)


def test_reasoning_gym_rows_are_scored_by_their_own_task() -> None:
    pytest.importorskip("reasoning_gym")
    from rlinf_core.builtin.datasets.reasoning_gym import ReasoningGym
    from rlinf_core.builtin.rewards.reasoning_gym import ReasoningGymReward

    config = ReasoningGymConfig(task="chain_sum", options={"max_terms": 3}, size=50, eval_size=50)
    train, evaluation = ReasoningGym(config, "train", 0), ReasoningGym(config, "eval", 0)
    assert train.fingerprint() == ReasoningGym(config, "train", 0).fingerprint()
    assert len({train[i].prompt for i in range(50)} & {evaluation[i].prompt for i in range(50)}) < 5
    row = train[0]
    reward = ReasoningGymReward(ReasoningGymRewardConfig())
    responses = [row.answer, f"<think>9</think><answer> {row.answer} </answer>", "junk", ""]
    items = [RewardItem("", text, answer=row.answer, meta=row.meta) for text in responses]
    values = [result.value for result in reward.score(items)]
    assert values[:2] == [1.0, 1.0]
    assert max(values[2:]) < 0.1
    assert reward.score([RewardItem("", "1")])[0].verdict == "error"


def test_a_scorer_that_raises_makes_the_answer_unparsable() -> None:
    pytest.importorskip("reasoning_gym")
    from rlinf_core.builtin.rewards.reasoning_gym import ReasoningGymReward

    broken = {"task": "chain_sum", "options": {}, "entry": {}}  # the scorer looks for entry["answer"]
    (result,) = ReasoningGymReward(ReasoningGymRewardConfig()).score([RewardItem("", "1", meta=broken)])
    assert isinstance(result, RewardResult)
    assert (result.value, result.verdict) == (0.0, "unparsable")


def test_unknown_tasks_and_options_of_reasoning_gym_are_named() -> None:
    pytest.importorskip("reasoning_gym")
    from rlinf_core.builtin.datasets.reasoning_gym import ReasoningGym

    with pytest.raises(DataError, match=r"no task 'chain_sums'.*Did you mean 'chain_sum'\?"):
        ReasoningGym(ReasoningGymConfig(task="chain_sums"), "train", 0)
    with pytest.raises(DataError, match=r"data.options .* do not fit the task 'chain_sum'"):
        ReasoningGym(ReasoningGymConfig(options={"colour": 1}), "train", 0)


def test_no_training_row_of_reasoning_gym_asks_a_held_out_question() -> None:
    pytest.importorskip("reasoning_gym")
    from rlinf_core.builtin.datasets.reasoning_gym import ReasoningGym

    few = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}  # 200 different questions
    config = ReasoningGymConfig(task="chain_sum", options=few, size=400, eval_size=60)
    train, held_out = (ReasoningGym(config, split, 3) for split in ("train", "eval"))
    asked = {held_out[i].prompt for i in range(60)}
    assert len(asked) > 40
    assert not asked & {train[i].prompt for i in range(400)}
    everything = ReasoningGym(
        ReasoningGymConfig(task="chain_sum", options=few, size=4, eval_size=4000), "train", 3
    )
    with pytest.raises(DataError, match="too few different questions"):
        everything[0]
