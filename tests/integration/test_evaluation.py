"""Evaluations of checkpoints outside of their run give the numbers of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EVERY = ("eval.every=1", "checkpoint.every=1", "checkpoint.keep=9", "train.steps=2")
POLE = ("--simulator=gymnasium", "simulator.id=InvertedPendulum-v5", "simulator.max_episode_steps=8")


def evaluations(run: Path) -> dict[int, dict[str, Any]]:
    """What a run wrote down, by step."""
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    return {each["step"]: each for each in map(json.loads, lines)}


def compare(command: Callable[..., Any], run: Path, *args: str, steps: tuple[int, ...]) -> None:
    """Evaluate checkpoints, and see that every number is that of the run, to the last bit."""
    own = evaluations(run)
    for step in steps:
        done = command("eval", str(run), f"--step={step}", "--json", *args)
        assert done.code == 0, done.err
        found = json.loads(done.out)
        for name in ("on", "how", "problems", "intervals"):
            assert found[name] == own[step][name], (step, name)
        assert found["metrics"].items() >= own[step]["metrics"].items()


def test_every_checkpoint_has_the_numbers_that_the_run_found(
    new_job: Callable[..., Any], command: Callable[..., Any]
) -> None:
    adapters = ("--lora-rank=2", "model.preset=tiny-llama", "optimizer.lr=0.01")
    job = new_job(*EVERY, *adapters, "algo.kl_coef=0.1")  # for which it keeps a reference
    done = job.train()
    assert done.code == 0, done.err
    own = evaluations(job.output)
    assert list(own) == [0, 1, 2]
    assert own[0]["problems"] != own[2]["problems"]
    compare(command, job.output, steps=(0, 1, 2))


@pytest.mark.slow
def test_the_number_of_ranks_does_not_change_an_evaluation(start: Callable[..., Any]) -> None:
    model = ("--model=hf_lm", "model.preset=char-llama", "--data=sort_digits", "--reward=exact")
    asked = ["eval", *model, "--responses=3", "--samples=5", "--json", "sampling.max_new_tokens=8"]
    one, two = (json.loads(start([*asked, f"--ranks={ranks}"]).done().out) for ranks in (1, 2))
    assert len(two["problems"]) == 5
    for name in ("on", "how", "problems", "intervals"):
        assert one[name] == two[name], name


def test_episodes_are_evaluated_as_the_run_did(command: Callable[..., Any], tmp_path: Path) -> None:
    base = ("--backend=fsdp", "--engine=inline", "--ranks=1", "--model=mlp_policy")
    sizes = ("train.prompts_per_step=2", "eval.samples=3", "trackers=[]", "algo.critic=own")
    run = tmp_path / "run"
    done = command("train", *base, "--algo=ppo", *POLE, *EVERY, *sizes, f"--output={run}")
    assert done.code == 0, done.err
    compare(command, run, steps=(1, 2))
    done = command("eval", str(run), "--greedy", "--json", "--samples=4")
    found = json.loads(done.out)
    assert found["how"] == {"responses": 1, "seed": 0, "greedy": True}
    assert {"success", "reward", "response_length"} < set(found["metrics"])
    assert len({each["problem"] for each in found["problems"]}) == 4
    done = command("eval", *base, *POLE, "--samples=2", "--responses=2", "--json")
    assert done.code == 0, done.err
    untrained = json.loads(done.out)
    assert untrained["of"] == {"model": "mlp_policy"}
    assert [each["problem"] for each in untrained["problems"]] == [
        each["problem"] for each in found["problems"][:2]
    ]
    assert "no rows of data" in command("eval", str(run), "--split=all").error
    assert "name a number" in command("eval", str(run), "--samples=0").error
