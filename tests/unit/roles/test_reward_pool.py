"""The reward pool: deadlines, crashes, retries, and what is told about them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlinf_core.api.reward import RewardItem
from rlinf_core.builtin.rewards.config import ExactConfig
from rlinf_core.errors import ConfigError, RewardError
from rlinf_core.roles.reward_pool import PoolReward, RewardPool

pytestmark = pytest.mark.alone
EXACT = PoolReward("exact", "rlinf_core.builtin.rewards.exact:Exact", ExactConfig())

REWARDS = '''
import os, re, sys, time
from pathlib import Path
from rlinf_core.api.reward import Reward, RewardResult

class Obedient(Reward):
    """Does what the response says."""
    def score(self, items):
        return [self.one(item.response) for item in items]

    def one(self, order):
        word, _, argument = order.partition(" ")
        if word == "sleep": time.sleep(float(argument))
        if word == "raise": raise ValueError("bad " + argument)
        if word == "segfault": os.kill(os.getpid(), 11)
        if word == "exit": os._exit(3)
        if word == "regex": re.match(r"(a+)+$", "a" * 40 + "b")
        if word == "print": print("noise on stdout", flush=True)
        if word == "once" and not Path(argument).exists():
            Path(argument).touch()
            raise ValueError("only once")
        if word == "nan": return float("nan")
        if word == "text": return "high"
        if word == "junk": return RewardResult(0.0, "unparsable", "no answer")
        if word == "pid": return os.getpid()
        return 1.0

class Short(Reward):
    def score(self, items):
        return [1.0] * (len(items) - 1)

class Broken(Short):
    def __init__(self, config):
        raise RuntimeError("no model file")

class TorchFree(Reward):
    def score(self, items):
        return [float("torch" in sys.modules) for item in items]
'''

Make = Callable[..., RewardPool]


def item(response: str, answer: object = None) -> RewardItem:
    return RewardItem(prompt="p", response=response, answer=answer)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes pools of the rewards above; closes them."""
    (tmp_path / "pool_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    pools: list[RewardPool] = []

    def make_pool(*names: str, **options: object) -> RewardPool:
        terms = [PoolReward(name.lower(), f"pool_rewards:{name}") for name in names]
        pools.append(RewardPool(terms, **options))
        return pools[-1]

    yield make_pool
    for pool in pools:
        pool.close()


def test_terms_are_weighted_and_reported_before_weighting() -> None:
    pool = RewardPool([EXACT, PoolReward("exact", EXACT.target, ExactConfig(ignore_case=True), weight=0.5)])
    scored = pool.score([item("ab", "ab"), item("AB", "ab"), item("x", "ab")])
    pool.close()
    assert [score.value for score in scored] == [1.5, 0.5, 0.0]
    assert scored[1].parts == {"exact": 0.0, "exact_2": 1.0}
    assert scored[1].verdicts == {"exact": "ok", "exact_2": "ok"}


def test_results_keep_the_order_of_the_items_over_several_processes(make: Make) -> None:
    pool = RewardPool([EXACT], workers=3)
    scored = pool.score([item(str(i % 7), "3") for i in range(500)])
    pool.close()
    assert [score.value for score in scored] == [float(i % 7 == 3) for i in range(500)]


def test_a_hanging_item_costs_only_itself(make: Make) -> None:
    pool = make("Obedient", workers=1, timeout_s=0.4)
    began = time.monotonic()
    scored = pool.score([item("sleep 60" if i == 5 else "fine") for i in range(40)])
    assert time.monotonic() - began < 5
    assert [i for i, score in enumerate(scored) if score.value is None] == [5]
    assert scored[5].verdicts == {"obedient": "timeout"}
    assert "obedient" in (scored[5].error or "")
    assert "0.4 s (reward_pool.timeout_s)" in (scored[5].error or "")
    assert pool.score([item("fine")])[0].value == 1.0


def test_a_hang_that_holds_the_interpreter_lock_is_ended_too(make: Make) -> None:
    pool = make("Obedient", timeout_s=0.3)
    scored = pool.score([item("regex"), item("fine")])
    assert [score.verdicts["obedient"] for score in scored] == ["timeout", "ok"]


def test_a_reward_that_always_hangs_ends_the_run_long_before_every_item_was_tried(make: Make) -> None:
    pool = make("Obedient", timeout_s=0.05)
    with pytest.raises(RewardError, match=r"'obedient' .* took longer than 0.05 s .* 16 responses in a row"):
        pool.score([item("sleep 60")] * 500)
    assert pool.score([item("fine")])[0].value == 1.0


def test_many_slow_items_within_their_own_deadline_all_count(make: Make) -> None:
    pool = make("Obedient", timeout_s=0.5)
    scored = pool.score([item("sleep 0.04") for _ in range(30)])
    assert [score.value for score in scored] == [1.0] * 30


@pytest.mark.parametrize(("order", "ending"), [("segfault", "signal SIGSEGV"), ("exit", "exit code 3")])
def test_an_item_that_kills_its_process_is_named_with_the_way_it_ended(
    make: Make, order: str, ending: str
) -> None:
    scored = make("Obedient").score([item("fine"), item(order), item("fine")])
    assert [score.value for score in scored] == [1.0, None, 1.0]
    assert scored[1].verdicts == {"obedient": "error"}
    assert ending in (scored[1].error or "")


def test_an_item_whose_reward_raises_is_an_error_and_never_a_zero(make: Make) -> None:
    scored = make("Obedient").score([item("fine"), item("raise luck")])
    assert [score.value for score in scored] == [1.0, None]
    assert "ValueError: bad luck (pool_rewards.py:" in (scored[1].error or "")
    assert "in one" in (scored[1].error or "")


def test_a_reward_that_raises_once_is_asked_again(make: Make, tmp_path: Path) -> None:
    again = make("Obedient", retries=1).score([item(f"once {tmp_path}/a")])
    never = make("Obedient", retries=0).score([item(f"once {tmp_path}/b")])
    assert again[0].value == 1.0
    assert never[0].value is None


@pytest.mark.parametrize(("order", "said"), [("nan", "returned nan"), ("text", "'high'")])
def test_a_value_that_is_no_finite_number_is_an_error(make: Make, order: str, said: str) -> None:
    (scored,) = make("Obedient").score([item(order)])
    assert scored.value is None
    assert said in (scored.error or "")


def test_unparsable_is_a_valid_zero_with_its_own_verdict(make: Make) -> None:
    (scored,) = make("Obedient").score([item("junk")])
    assert (scored.value, scored.verdicts, scored.error) == (0.0, {"obedient": "unparsable"}, None)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_wrong_number_of_results_names_the_reward_and_both_numbers(make: Make, workers: int) -> None:
    pool = make("Short", workers=workers)
    with pytest.raises(
        RewardError, match=r"'short' \(pool_rewards:Short\) returned 3 results for 4 responses"
    ):
        pool.score([item("x")] * 4)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reward_that_cannot_be_loaded_says_why_in_one_line(make: Make, workers: int) -> None:
    with pytest.raises(RewardError, match=r"'broken' .* cannot be loaded: RuntimeError: no model file"):
        make("Broken", workers=workers)


def test_without_workers_rewards_run_in_this_process(make: Make) -> None:
    assert make("Obedient", workers=0).score([item("pid")])[0].value == os.getpid()


def test_a_scoring_process_imports_no_torch_and_tolerates_prints(make: Make) -> None:
    assert make("TorchFree").score([item("x")])[0].value == 0.0
    assert make("Obedient").score([item("print")])[0].value == 1.0


def test_a_process_killed_between_two_rounds_is_replaced_without_loss(make: Make) -> None:
    pool = make("Obedient")
    pid = int(pool.score([item("pid")])[0].value or 0)
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.05)
    scored = pool.score([item("pid")] * 3)
    assert len({score.value for score in scored}) == 1
    assert scored[0].value not in (None, pid)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers=-1"):
        RewardPool([EXACT], workers=-1)


def test_the_pool_ends_with_its_parent_even_while_a_reward_hangs(make: Make, tmp_path: Path) -> None:
    code = f"""
        import sys; sys.path.insert(0, {str(tmp_path)!r})
        from rlinf_core.roles.reward_pool import PoolReward, RewardPool
        from rlinf_core.api.reward import RewardItem
        pool = RewardPool([PoolReward("obedient", "pool_rewards:Obedient")], timeout_s=60)
        print(int(pool.score([RewardItem("p", "pid")])[0].value), flush=True)
        pool.score([RewardItem("p", "sleep 60")])
    """
    # The parent's code comes from -c: its __main__ cannot be imported by anybody.
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(0.2)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 3
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
            return
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_a_warm_pool_scores_a_step_of_samples_in_milliseconds() -> None:
    pool = RewardPool([EXACT])
    items = [item("012359", "012359")] * 512
    pool.score(items)
    began = [0.0] * 10
    for round_ in range(10):
        start = time.perf_counter()
        pool.score(items)
        began[round_] = time.perf_counter() - start
    pool.close()
    assert min(began) < 0.05  # 5 ms on an idle machine
