"""Programs that a model wrote: scored by tests, and without rights."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.api.reward import RewardItem, RewardResult
from rlinf_core.builtin.rewards.code import Code, cases_of
from rlinf_core.builtin.rewards.config import CodeConfig
from rlinf_core.builtin.sandbox import Sandbox
from rlinf_core.errors import ConfigError, RewardError

BOX = Sandbox(1024)


@pytest.fixture(autouse=True, scope="module")
def _shut_in() -> None:
    try:
        BOX.check("reward code")
    except ConfigError as err:
        pytest.skip(f"programs cannot be shut in on this system: {err}")


DOUBLE = "Let me think.\n```python\ndef f(x):\n    return 2 * x\n```\nDone."
CHECKS = ["assert f(1) == 2", "assert f(-3) == -6", "assert f(0) == 1"]
ECHO = "```\nwhile True:\n    try:\n        print(int(input()) + 1)\n    except EOFError:\n        break\n```"


def score(response: str, answer: Any, **settings: Any) -> RewardResult:
    (result,) = Code(CodeConfig(**settings)).score([RewardItem("", response, answer)])
    return result


def test_a_program_that_passes_every_test_scores_one() -> None:
    assert score(DOUBLE, "assert f(1) == 2\nassert f(4) == 8") == RewardResult(1.0)


def test_one_wrong_test_of_three_costs_all_or_a_third() -> None:
    assert score(DOUBLE, CHECKS).value == 0.0
    found = score(DOUBLE, json.dumps(CHECKS), partial=True)
    assert found.value == pytest.approx(2 / 3)
    assert "AssertionError" in found.detail


def test_what_is_printed_is_compared_without_white_space_at_the_ends_of_lines() -> None:
    tests = {"inputs": ["1\n2\n", "7"], "outputs": ["2  \n3", "8\n\n"]}
    assert score(ECHO, tests).value == 1.0
    assert score(ECHO, {"inputs": ["1"], "outputs": ["3"]}) == RewardResult(
        0.0, "ok", "it printed something else"
    )


def test_the_last_block_counts_and_a_response_without_one_is_unparsable() -> None:
    assert score(f"```python\nf = None\n```\n{DOUBLE}", CHECKS[0]).value == 1.0
    assert score("def f(x): return 2 * x", CHECKS[0]).verdict == "unparsable"


@pytest.mark.parametrize(
    "program",
    ["import os\nos._exit(0)", "raise SystemExit(0)", "import atexit, os\natexit.register(os._exit, 0)\n1/0"],
)
def test_a_program_that_ends_before_its_tests_passes_none(program: str) -> None:
    assert score(f"```python\n{program}\n```", "assert False").value == 0.0


def test_an_endless_program_is_ended_and_scores_zero() -> None:
    began = time.monotonic()
    found = score("```python\nwhile True: pass\n```", CHECKS, timeout_s=1.0)
    assert (found.value, found.verdict) == (0.0, "ok")
    assert time.monotonic() - began < 60


def test_a_program_may_be_long_and_hold_anything() -> None:
    program = f"data = {'x' * 300_000!r}\nprint(len(data))"
    assert BOX.run([program], timeout_s=30).output == "300000\n"
    assert not BOX.run(["\0\ud83d"], timeout_s=20, given="\ud83d").whole


def test_the_order_with_its_secret_is_gone_before_the_program_runs() -> None:
    looks = "import os, sys\nprint(sorted(os.listdir('.')), sys.argv)"
    assert BOX.run([looks], timeout_s=20).output == "['errors', 'given'] ['program']\n"


@pytest.mark.parametrize("answer", [None, "", {}, {"inputs": ["1"], "outputs": []}, [1, 2], 7])
def test_an_answer_without_tests_is_an_error_that_says_what_one_is(answer: Any) -> None:
    with pytest.raises(RewardError, match="has no tests; it is Python with assertions"):
        cases_of(answer)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="timeout_s above 0"):
        CodeConfig(timeout_s=0)


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.socket()",
        "import socket; socket.socket(socket.AF_UNIX)",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
        "import os; os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import subprocess; subprocess.run(['true'])",
        "open('/etc/passwd').read()",
        "import os; os.listdir('/etc')",
        "open('/proc/self/environ').read()",
        "open('/dev/shm/mine', 'w')",
        "import os; os.unlink('/etc/hostname')",
        "import ctypes; assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0",
        "bytearray(4 << 30)",
        "open('large', 'w').write('x' * (2 << 20))",
    ],
)
def test_a_program_cannot(program: str) -> None:
    ran = BOX.run([program], timeout_s=20)
    assert not ran.whole
    assert not ran.late
    assert ran.complaint.splitlines()[-1].startswith(
        ("PermissionError", "MemoryError", "OSError", "AssertionError", "urllib.error.URLError")
    )


def test_a_program_cannot_signal_others_and_can_write_and_use_threads_in_its_folder(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        signal.pause()
    try:
        ran = BOX.run([f"import os; os.kill({child}, 9)"], timeout_s=20)
        assert "PermissionError" in ran.complaint
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    own = (
        "import threading\nopen('a', 'w').write('b')\n"
        "t = threading.Thread(target=lambda: print(open('a').read()))\nt.start()\nt.join()"
    )
    assert BOX.run([own], timeout_s=20).output == "b\n"


def test_nothing_of_the_environment_and_no_open_file_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    with socket.socket() as held:
        os.set_inheritable(held.fileno(), True)
        ran = BOX.run(
            [
                "import os\nprint(os.environ.get('A_SECRET'))",
                f"try:\n  os.fstat({held.fileno()})\n  print('open')\nexcept OSError:\n  print('closed')",
            ],
            timeout_s=20,
        )
    assert ran.output == "None\nclosed\n"
