"""The reward `math`: one table of what is equal, one of what is not."""

from __future__ import annotations

import pytest

from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.builtin.rewards.config import MathConfig
from rlinf_core.builtin.rewards.math_text import final_answer

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def math_reward() -> Reward:
    from rlinf_core.builtin.rewards.math import Math

    return Math(MathConfig())


def judge(reward: Reward, response: str, answer: object) -> RewardResult:
    (result,) = reward.score([RewardItem(prompt="", response=response, answer=answer)])
    assert isinstance(result, RewardResult)
    return result


EQUAL = [
    (r"\boxed{\frac12}", "0.5"),
    (r"\boxed{.5}", "1/2"),
    (r"\boxed{\dfrac{1}{2}}", ".5"),
    ("0.5", r"\frac{1}{2}"),
    (r"\boxed{50\%}", "0.5"),
    (r"$50\%$", "50%"),
    ("50%", "0.5"),
    ("0.5", r"50\%"),
    (r"\boxed{A}", "(A)"),
    (r"\boxed{\text{(A)}}", "A"),
    (r"The answer is (A).", "A"),
    (r"\boxed{\textbf{B}}", r"\text{B}"),
    ("Both hold.\n(B) 12", "B"),
    (r"\boxed{1,234}", "1234"),
    ("1234", "1,234"),
    (r"\boxed{1{,}234}", "1234"),
    (r"\boxed{3.0}", "3"),
    (r"\boxed{x=3}", "3"),
    (r"\boxed{3}", "x = 3"),
    (r"first \boxed{7}, no: \boxed{8}", "8"),
    (r"\boxed{\frac{\sqrt{3}}{2}}", r"\frac{\sqrt{3}}{2}"),
    (r"\boxed{\{1, 2, 3\}}", r"\{3, 2, 1\}"),
    (r"\boxed{(1, 2)}", "(1,2)"),
    (r"\boxed{5\text{ cm}}", "5"),
    ("5 square meters", "5"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{5\text{ cm}^2}", "5"),
    (r"\boxed{0.\overline{3}}", r"\frac13"),
    (r"\boxed{0.1\overline{6}}", "1/6"),
    ("1e3", "1000"),
    (r"\boxed{1\frac{1}{2}}", "1.5"),
    (r"\boxed{(-\infty, 2) \cup (3, \infty)}", r"(-\infty,2)\cup(3,\infty)"),
    (r"\boxed{x \in [1,2]}", "[1,2]"),
    (r"\boxed{\$18.90}", "18.9"),
    ("**Answer: 42**", "42"),
    ("The answer is **7**.", "7"),
    ("A is wrong, so the answer is B", "B"),
    ("I get\n\n\\[ x = \\frac{3}{4} \\]", "0.75"),
    ("She pays $1,234.50", "1234.5"),
    (r"\boxed{2\sqrt{3}}", r"\sqrt{12}"),
    (r"\boxed{3, 1, 2}", "1, 2, 3"),
    ("x = 1 or x = 2", "2, 1"),
    ("<think>so 4?</think><answer>\n5 </answer>", "5"),
    (r"<answer>it is \boxed{5}</answer>", "5"),
    (r"We get $x = 2$. So the answer is $\frac{1}{3}$, as claimed.", r"\frac{1}{3}"),
    ("Six times seven\n#### 42", "Janet has 42.\n#### 42"),
    ("She sells 9 eggs a day and earns 18 dollars", "18"),
    (r"\boxed{(x+1)^2}", "x^2+2x+1"),
    ("yes", "Yes"),
    ("12", 12),
    ("0.5", 0.5),
]


@pytest.mark.parametrize(("response", "answer"), EQUAL)
def test_an_equal_answer_scores_one(math_reward: Reward, response: str, answer: object) -> None:
    result = judge(math_reward, response, answer)
    assert (result.value, result.verdict) == (1.0, "ok")


DIFFERENT = [
    (r"\boxed{0.51}", "0.5"),
    (r"\boxed{8}, no: \boxed{7}", "8"),
    (r"\boxed{(2, 1)}", "(1, 2)"),
    (r"\boxed{B}", "(A)"),
    (r"\boxed{1, 1, 2}", "1, 2, 2"),
    (r"\boxed{-3}", "3"),
    (r"\boxed{[1, 2)}", "(1, 2)"),
    ("<answer>4</answer> or 5", "5"),
    ("listen", "silent"),
    (r"\boxed{0.333}", r"\frac{1}{3}"),
]


@pytest.mark.parametrize(("response", "answer"), DIFFERENT)
def test_a_different_answer_is_a_valid_zero(math_reward: Reward, response: str, answer: str) -> None:
    result = judge(math_reward, response, answer)
    assert (result.value, result.verdict) == (0.0, "ok")


JUNK = ["", "   ", r"\boxed{\frac{1}{2}", r"\boxed{}", "I do not know it at all"]
TOO_LARGE = [r"\boxed{10^{10^{10}}}", r"\boxed{2^{9999999}}", r"\boxed{99999!}"]


@pytest.mark.parametrize("response", JUNK + TOO_LARGE)
def test_a_response_without_a_readable_answer_is_unparsable(math_reward: Reward, response: str) -> None:
    result = judge(math_reward, response, "1/2")
    assert (result.value, result.verdict) == (0.0, "unparsable")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The answer is 57. 21 + 38 =", "59"),
        ("21 + 38 =", "59"),
        ("The answer is 21 + 38", "59"),
        (r"\boxed{21 + 38}", "59"),
        ("66 - 7", "59"),
    ],
)
def test_a_question_written_again_is_no_answer(math_reward: Reward, response: str, answer: str) -> None:
    result = judge(math_reward, response, answer)
    assert (result.value, result.verdict) == (0.0, "unparsable")


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("21 + 38 = 59", "59"),
        (r"\boxed{-59}", "-59"),
        ("3 - x", "3-x"),
        ("1 + 2i", "2i + 1"),
        ("5e-1", "0.5"),
    ],
)
def test_worked_out_sums_and_expressions_asked_for_count(
    math_reward: Reward, response: str, answer: str
) -> None:
    assert judge(math_reward, response, answer).value == 1.0


def test_a_row_without_answer_is_an_error_rather_than_a_zero(math_reward: Reward) -> None:
    assert judge(math_reward, "5", None).verdict == "error"


def test_braces_inside_the_last_box_are_kept_whole() -> None:
    assert final_answer(r"\boxed{1} then \boxed{\frac{a}{b^{2}}} end") == r"\frac{a}{b^{2}}"
