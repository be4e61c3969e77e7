"""The rewards exact, regex, format, length and python."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.builtin.rewards.config import (
    ExactConfig,
    FormatConfig,
    LengthConfig,
    PythonConfig,
    RegexConfig,
)
from rlinf_core.builtin.rewards.exact import Exact
from rlinf_core.builtin.rewards.length import Length
from rlinf_core.builtin.rewards.python import PythonReward
from rlinf_core.builtin.rewards.regex import Format, Regex
from rlinf_core.errors import ConfigError, RewardError


def judge(reward: Reward, response: str, answer: object = None) -> tuple[float, str]:
    (result,) = reward.score([RewardItem(prompt="", response=response, answer=answer)])
    return (result.value, result.verdict) if isinstance(result, RewardResult) else (result, "ok")


def test_exact_compares_text_and_only_ignores_what_it_is_told_to() -> None:
    assert judge(Exact(ExactConfig()), " 42\n", 42) == (1.0, "ok")
    assert judge(Exact(ExactConfig(strip=False)), "42\n", "42") == (0.0, "ok")
    assert judge(Exact(ExactConfig()), "Paris", "paris") == (0.0, "ok")
    assert judge(Exact(ExactConfig(ignore_case=True)), "PARIS", "paris") == (1.0, "ok")
    assert judge(Exact(ExactConfig(collapse_spaces=True)), "a  b", "a b") == (1.0, "ok")
    assert judge(Exact(ExactConfig()), "x", None)[1] == "error"


def test_regex_rewards_a_match_or_a_group_equal_to_the_answer() -> None:
    assert judge(Regex(RegexConfig(r"\d+", value=2.0)), "a 7") == (2.0, "ok")
    assert judge(Regex(RegexConfig(r"\d+", full=True)), "a 7") == (0.0, "ok")
    assert judge(Regex(RegexConfig("YES", flags="i")), "yes") == (1.0, "ok")
    group = Regex(RegexConfig(r"= (?P<n>\d+)", group="n"))
    assert judge(group, "so = 12", 12) == (1.0, "ok")
    assert judge(group, "so = 13", 12) == (0.0, "ok")
    assert judge(group, "so 12", 12) == (0.0, "unparsable")


def test_regex_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a regular expression"):
        RegexConfig("(")
    with pytest.raises(ConfigError, match="group of regex is 'n'; groups there: 0, 1"):
        RegexConfig("(a)", group="n")
    with pytest.raises(ConfigError, match="known: i, m, s, x"):
        RegexConfig("a", flags="q")


@pytest.mark.parametrize(
    ("response", "value"),
    [
        ("<think>a\nb</think>\n<answer>4</answer>\n", 1.0),
        ("<think></think><answer>4</answer>", 1.0),
        ("<think>a < b</think><answer>4</answer>", 1.0),
        ("<answer>4</answer><think>a</think>", 0.0),
        ("<think>a</think><answer>4</answer> and more", 0.0),
        ("<think>a<answer>4</answer>", 0.0),
        ("<think>a</think><answer>4</answer><answer>5</answer>", 0.0),
        ("<think>a<think>b</think></think><answer>4</answer>", 0.0),
    ],
)
def test_format_wants_each_section_once_in_order_and_nothing_else(response: str, value: float) -> None:
    assert judge(Format(FormatConfig()), response) == (value, "ok")


def test_length_falls_linearly_between_free_and_limit() -> None:
    reward = Length(LengthConfig(free=10, limit=20, penalty=2.0))
    assert [judge(reward, "x" * n)[0] for n in (10, 15, 20, 99)] == [0.0, -1.0, -2.0, -2.0]
    with pytest.raises(ConfigError, match="free=5, limit=5"):
        LengthConfig(free=5, limit=5)


def python(tmp_path: Path, body: str) -> PythonReward:
    (tmp_path / "mine.py").write_text(f"def score(prompts, responses, answers, metas):\n    {body}\n")
    return PythonReward(PythonConfig(f"{tmp_path}/mine.py:score"))


def test_a_function_of_a_file_gets_lists_and_gives_numbers(tmp_path: Path) -> None:
    reward = python(tmp_path, "return [len(r) + a + m['k'] for r, a, m in zip(responses, answers, metas)]")
    items = [RewardItem("p", "ab", 10, {"k": 100}), RewardItem("p", "c", 20, {"k": 200})]
    assert [result.value for result in reward.score(items)] == [112.0, 221.0]


def test_a_function_that_returns_the_wrong_number_is_named_with_both_numbers(tmp_path: Path) -> None:
    reward = python(tmp_path, "return [1.0]")
    with pytest.raises(RewardError, match=r"mine.py:score returned 1 rewards for 2 responses"):
        reward.score([RewardItem("", "a"), RewardItem("", "b")])
    with pytest.raises(RewardError, match=r"mine.py:score returned float, not a list"):
        python(tmp_path, "return 1.0").score([RewardItem("", "a")])


@pytest.mark.parametrize("value", ["None", "float('nan')", "'high'"])
def test_a_value_that_is_no_number_is_an_error_that_names_the_function(tmp_path: Path, value: str) -> None:
    (result,) = python(tmp_path, f"return [{value}]").score([RewardItem("", "a")])
    assert result.verdict == "error"
    assert "mine.py:score returned" in result.detail


def test_targets_that_cannot_be_found_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"write package.module:function or ./file.py:function"):
        PythonConfig("just_a_name")
    with pytest.raises(ConfigError, match="does not exist"):
        PythonConfig(f"{tmp_path}/absent.py:score")
    with pytest.raises(RewardError, match="cannot import no_such_module: ModuleNotFoundError"):
        PythonReward(PythonConfig("no_such_module:score"))
    (tmp_path / "mine_too.py").write_text("def score(**lists): return []\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RewardError, match=r"no function 'scor'; there: score. Did you mean 'score'\?"):
        PythonReward(PythonConfig("mine_too:scor"))


def test_a_function_with_other_parameters_is_refused_before_anything_is_scored(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(
        "def theirs(completions, **rest): return [0.0 for _ in completions]\n"
        "def ours(responses, **_): return [1.0 for _ in responses]\n"
    )
    with pytest.raises(RewardError, match=r"takes \(completions, \*\*rest\), which does not fit .*prompts="):
        PythonReward(PythonConfig(f"{tmp_path}/other.py:theirs"))
    assert judge(PythonReward(PythonConfig(f"{tmp_path}/other.py:ours")), "") == (1.0, "ok")
