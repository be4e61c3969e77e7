"""Runs with `--rollout vllm`: refused where vLLM is not there, and the same in all three modes (slow)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.isolation import build
from rlinf_core.plugins import plugins

MAIN = "from rlinf_core.cli.app import main; main()"
REWARD = '''
def partial(prompts, responses, answers, metas):
    """The share of characters that are digits."""
    return [sum(each in "0123456789" for each in r) / max(1, len(r)) for r in responses]
'''


def train(folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "digits.py").write_text(REWARD)
    command = [
        *(sys.executable, "-c", MAIN, "train", "--algo=grpo", "--backend=fsdp", "--rollout=vllm"),
        *(
            "model=hf_lm",
            "data=sort_digits",
            "model.preset=tiny-qwen2",
            "rollout.cache_gb=0.25",
            "rollout.max_running=32",
        ),
        *("sampling.max_new_tokens=8", "train.steps=2", "train.prompts_per_step=4", "eval.samples=8"),
        *("warm_start.steps=0", "trackers=[]", f"--reward={folder / 'digits.py'}:partial"),
        *(f"--output={folder / 'run'}", *more),
    ]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_without_vllm_a_run_is_refused_with_the_line_that_installs_it(tmp_path: Path) -> None:
    done = train(tmp_path, RLINF_ENVIRONMENTS=str(tmp_path / "none"))
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "'vllm' would run in this environment, which lacks vllm; give it one of its own by" in said
    assert "`rlinf plugins install vllm --isolated`" in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_its_own_environment_can_be_asked_for(tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    done = train(tmp_path, "rollout_process.isolated=always", RLINF_ENVIRONMENTS=none)
    said = " ".join(done.stderr.split())
    assert "rollout_process.isolated: rollout 'vllm' has no environment of its own here; build it by" in said


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["collocated", "disaggregated", "hybrid"])
def test_a_run_learns_from_vllms_responses_in_every_mode(mode: str, tmp_path: Path) -> None:
    build(plugins().get("rollouts", "vllm"))
    ranks = 1 if mode == "collocated" else 2
    done = train(tmp_path, f"mode={mode}", f"ranks={ranks}")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps: list[dict[str, Any]] = [json.loads(line) for line in lines]
    trained = [step for step in steps if "train/logprob_mismatch" in step]
    assert len(trained) == 2
    for step in trained:
        assert 0 < step["train/logprob_mismatch"] < 1e-4  # both sides compute in float32, each in its own way
        assert step["train/grad_norm"] > 0
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert {(sample["step"], sample["weight_version"]) for sample in samples} == {(1, 0), (2, 1)}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_vllms_responses_call_tools(tmp_path: Path) -> None:
    """And go on with what these say: products are right, whatever the model makes of them."""
    build(plugins().get("rollouts", "vllm"))
    data = "{name: arithmetic, operator: '*', digits: 1, zero_pad: false, tool: calculator}"
    done = train(
        tmp_path,
        *("--recipe=calculator", f"data={data}", "sampling.max_new_tokens=20"),
        *("warm_start.steps=120", "warm_start.batch_size=64", "train.prompts_per_step=8", "ranks=1"),
    )
    assert done.returncode == 0, done.stderr
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    turns = [re.match(r"\((\d)([*+-])(\d)\)>(-?\d+),", sample["response"]) for sample in samples]
    called = [turn.groups() for turn in turns if turn]
    assert len(called) > 8
    sums = {"*": int.__mul__, "+": int.__add__, "-": int.__sub__}
    assert all(sums[sign](int(left), int(right)) == int(said) for left, sign, right, said in called)
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["train/tool_calls"] > 0.1 for step in steps if "train/tool_calls" in step] == [True] * 2
    assert all(step.get("train/logprob_mismatch", 0.0) < 1e-4 for step in steps)
