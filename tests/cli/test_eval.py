"""`rlinf eval` and `rlinf compare` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def evaluated(rlinf: Any, tmp_path: Path) -> Any:
    """The result of `rlinf eval ARGS`."""

    def call(*args: object) -> dict[str, Any]:
        ended = rlinf("eval", *args, "--json")
        assert ended.code == 0, ended.err
        result: dict[str, Any] = json.loads(ended.out)
        return result

    return call


def model(data: Path) -> tuple[str, ...]:
    """A model without a run, on a file of prompts."""
    chosen = ("--model=hf_lm", "model.preset=char-llama", f"--data={data}", "--reward=exact")
    return (*chosen, "--engine=inline", "--ranks=1", "sampling.max_new_tokens=4")


def test_a_checkpoint_has_the_numbers_of_its_run(evaluated: Any, saved: Any, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in saved.output.rglob("*") if path.is_file()}
    last = json.loads((saved.output / "metrics.jsonl").read_text().splitlines()[-1])
    own = json.loads((saved.output / "evaluations.jsonl").read_text().splitlines()[-1])
    rows = tmp_path / "rows.jsonl"
    found = evaluated(saved.output, "--output", tmp_path / "out" / "a.json", "--rows", rows)
    assert json.loads((tmp_path / "out" / "a.json").read_text()) == found
    assert {k: v for k, v in last.items() if k.startswith("eval/")} == {
        f"eval/{k}": v for k, v in found["metrics"].items() if f"eval/{k}" in last
    }
    assert (own["step"], own["of"]["step"]) == (2, 2)
    for name in ("on", "how", "problems", "intervals"):
        assert found[name] == own[name], name
    assert found["of"] == {"model": "char-llama", "run": str(saved.output), "step": 2}
    told = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["length"] for row in told] == [each["lengths"][0] for each in found["problems"]]
    assert before == {path: path.read_bytes() for path in saved.output.rglob("*") if path.is_file()}


def test_several_responses_and_their_seeds(evaluated: Any, saved: Any) -> None:
    options = ("--samples=3", "--k=1,3", "sampling.max_new_tokens=2")
    found = evaluated(*model(saved.data), *options, "--split=all")
    assert found["how"]["responses"] == 3
    assert [each["problem"] for each in found["problems"]] == [0, 1, 2]
    assert {len(each["scores"]) for each in found["problems"]} == {3}
    assert {"pass@1", "pass@3"} < set(found["metrics"])
    other = evaluated(*model(saved.data), *options, "--split=all", "--seed=1", "sampling.max_new_tokens=4")
    assert other["problems"] != found["problems"]
    assert other["how"]["seed"] == 1
    assert len(evaluated(*model(saved.data), "--split=all", "--samples=0")["problems"]) == 20
    assert len(evaluated(*model(saved.data), "--samples=0", "--greedy")["problems"]) == 2  # those held out


def test_what_a_person_sees(rlinf: Any, saved: Any) -> None:
    ended = rlinf("eval", *model(saved.data), "--greedy")
    assert ended.code == 0
    assert ended.err == "char-llama on 2 problems of jsonl, greedy\n"
    assert ended.out.startswith("accuracy\t0.0%\t0.0% to 65.8%\nreward\t0\t0 to 0.6576\n")


def test_what_cannot_be_evaluated_is_told(refused: Any, saved: Any, tmp_path: Path) -> None:
    run, other = saved.output, model(saved.data)
    assert "name the folder of a run, or a model" in refused("eval")
    assert "there is no run here" in refused("eval", tmp_path)
    assert "there is no run here" in refused("eval", "nowhere")
    assert "one run at a time" in refused("eval", run, run)
    assert "has no such checkpoint; there are latest, step_1, step_2" in refused("eval", run, "--step=best")
    assert "no run is named" in refused("eval", *other, "--step=2")
    assert f"rlinf eval --config {run}/config.yaml --model x" in refused("eval", run, "--model=x")
    assert "reward: a text task needs one" in refused("eval", *(arg for arg in other if "reward" not in arg))
    assert "--k 2 is about 2 responses" in refused("eval", *other, "--k=2", "--responses=1")
    assert "such as --k 1,4,8" in refused("eval", *other, "--k=1,x")
    assert "responds the same each time" in refused("eval", *other, "--responses=2", "--greedy")
    assert "there are eval, train, all" in refused("eval", *other, "--split=test")
    assert "cannot be written" in refused("eval", *other, "--output", saved.data / "below")
    saved.data.write_text(saved.data.read_text().replace("19+1", "19+2"))
    assert "the held-out rows of 'jsonl' are not those of the run: 2 rows, " in refused("eval", run)


def test_results_of_files_and_runs_are_compared(rlinf: Any, saved: Any, tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    assert rlinf("eval", saved.output, "--output", a, "--samples=2").code == 0
    assert rlinf("eval", "--config", saved.output / "config.yaml", "--output", b).code == 0
    ended = rlinf("compare", saved.output, a, b, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert [each["name"] for each in found["results"]] == [str(saved.output), str(a), str(b)]
    assert (found["problems"], found["how"], found["by"]) == (2, {}, "score")
    assert found["results"][0]["difference"] is None
    assert found["results"][1]["difference"]["equal"] == 2
    shown = rlinf("compare", saved.output, b, "--by=reward")
    assert shown.code == 0
    assert len(shown.out.splitlines()) == 2
    assert shown.err.startswith("reward on 2 problems that all have; each compared with the first\n")


def test_what_cannot_be_compared_is_told(refused: Any, saved: Any, tmp_path: Path) -> None:
    run, none = saved.output, tmp_path / "none.json"
    assert "name two results or more" in refused("compare", run)
    assert "the same result is named twice" in refused("compare", run, run)
    assert "name a file of `rlinf eval --output`" in refused("compare", run, none)
    assert "no run has evaluated anything here" in refused("compare", tmp_path, run)
    assert "did not evaluate then; it did at 0, 2." in refused("compare", run, none, "--step=1")
    assert "there are score and reward" in refused("compare", run, none, "--by=loss")
    assert "not the result of an evaluation" in refused("compare", run, run / "config.yaml")
