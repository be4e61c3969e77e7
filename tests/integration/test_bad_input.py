"""A user's mistakes: one clear line, exit code 2, no traceback, and nothing is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILE_JOB = ("--reward=exact", "warm_start.steps=0")


def refused(done: Any, *parts: str) -> None:
    """The command ended with a message that holds the parts, in this order."""
    assert done.code == 2, done.err
    assert "Traceback" not in done.out + done.err
    assert re.search(".*".join(re.escape(part) for part in parts), done.error, re.DOTALL), done.err


def rows(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def test_an_unknown_plugin_comes_with_a_suggestion_and_how_to_install_it(job: Any) -> None:
    refused(job.train("--algo=grop"), "no algorithms plugin 'grop'", "Did you mean 'grpo'?", "pip install")
    assert not job.output.exists()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (None, ("does not exist",)),
        ({"notes.txt": "x"}, ("without config.json", "it holds: notes.txt")),
        ({"config.json": '{"model_type": "llama"}'}, ("cannot load the tokenizer",)),
    ],
)
def test_a_path_that_is_no_model_is_explained(job: Any, make: dict[str, str] | None, says: Any) -> None:
    place = job.folder / "base"
    if make is not None:
        place.mkdir()
        for name, text in make.items():
            (place / name).write_text(text)
    refused(job.train("model.preset=''", f"model.path={place}"), "model.path", *says)
    assert not job.output.exists()


def test_data_that_cannot_be_used_is_named_with_file_and_line(job: Any) -> None:
    path = job.folder / "train.jsonl"
    refused(job.train(*FILE_JOB, f"data={path}"), str(path))
    path.write_text("")
    refused(job.train(*FILE_JOB, f"data={path}"), str(path))
    path.write_text('{"prompt": "1=", "answer": "1"}\n{"prompt": "2=", \n')
    refused(job.train(*FILE_JOB, f"data={path}"), str(path), "2")
    rows(path, *[{"question": "1=", "answer": "1"}] * 3)
    refused(job.train(*FILE_JOB, f"data={path}"), "prompt", "question")
    assert not job.output.exists()


def test_batches_that_do_not_divide_come_with_numbers_that_do(job: Any) -> None:
    refused(
        job.train("train.mini_batches=5"), "32 samples", "5 equal mini-batches", "choose 2 or 4 or 8 or 16"
    )


def test_ranks_beyond_the_samples_of_a_step_are_refused(job: Any) -> None:
    done = job.train("--ranks=40", "--engine=local")
    refused(done, "32 samples, fewer than 40 ranks")


def test_long_prompts_are_counted_and_can_be_dropped(job: Any) -> None:
    prompts = [f"{n}=" if n % 4 else "7" * 300 for n in range(100, 400)]
    path = rows(job.folder / "train.jsonl", *[{"prompt": prompt, "answer": "7"} for prompt in prompts])
    given = (*FILE_JOB, f"data={path}")
    says = (" prompts are longer than the 248 tokens", "longest: 301", "set train.max_prompt_tokens=248")
    refused(job.train(*given), *says)
    assert job.train(*given, "train.max_prompt_tokens=248").code == 0
    assert len(job.metrics()) == 4
    refused(job.resume("train.max_prompt_tokens=0"), "train.max_prompt_tokens: 248 -> 0", "--allow-changes")


BAD_REWARDS = """
import time

def raises(prompts, responses, answers, metas):
    raise ValueError("no such unit")

def hangs(prompts, responses, answers, metas):
    time.sleep(60)

def nan(prompts, responses, answers, metas):
    return [float("nan")] * len(responses)

def one(prompts, responses, answers, metas):
    return [1.0]
"""


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("raises", ("could not be scored", "ValueError: no such unit (bad_rewards.py:5 in raises)")),
        ("hangs", ("took longer than 0.1 s", "reward_pool.timeout_s")),
        ("nan", ("could not be scored", "bad_rewards.py:nan returned nan, not a finite number")),
        ("one", ("bad_rewards.py:one returned 1 rewards for", "return one number per response")),
        ("raise", ("has no function 'raise'", "Did you mean 'raises'?")),
    ],
)
def test_a_reward_that_fails_ends_the_run_with_its_name(
    job: Any, function: str, says: tuple[str, ...]
) -> None:
    (job.folder / "bad_rewards.py").write_text(BAD_REWARDS)
    target = f"{job.folder / 'bad_rewards.py'}:{function}"
    fewer = ("reward_pool.timeout_s=0.1", "eval.samples=32", "warm_start.steps=0")
    refused(job.train(f"--reward={target}", *fewer), *says)


def test_a_mistake_that_a_worker_process_finds_is_one_line_too(job: Any, start: Callable[..., Any]) -> None:
    (job.folder / "bad_rewards.py").write_text(BAD_REWARDS)
    done = start(job.args(f"--reward={job.folder / 'bad_rewards.py'}:nan", engine="local")).done()
    refused(done, "could not be scored")
    assert done.err == done.error
    assert done.err.count("\n") == 1


def test_a_start_that_failed_does_not_block_its_folder(job: Any) -> None:
    (job.folder / "bad_rewards.py").write_text(BAD_REWARDS)
    refused(job.train(f"--reward={job.folder / 'bad_rewards.py'}:raise"), "has no function")
    assert job.train().code == 0


def test_an_output_folder_in_use_is_refused(job: Any) -> None:
    job.output.mkdir()
    (job.output / "thesis.tex").write_text("years of work")
    refused(job.train(), "is not empty", f"--resume {job.output}")
    assert (job.output / "thesis.tex").read_text() == "years of work"


def test_an_output_that_is_a_file_is_refused(job: Any) -> None:
    job.output.write_text("a file")
    refused(job.train(), "is a file; name a folder")


def test_resuming_what_is_no_run_is_refused(job: Any) -> None:
    refused(job.resume(), "there is no run here", "config.yaml")
