"""Runs whose numbers break down: weights that overflow, and rewards that are no numbers."""

from __future__ import annotations

from typing import Any

import pytest

from rlinf_core.roles.batch_file import read_batch

REWARD = """
def lucky(prompts, responses, answers, metas):
    return [float(sum(map(ord, response)) % 3) for response in responses]
"""
BREAKS = ("warm_start.steps=0", "train.steps=9", "optimizer.lr=1e38", "optimizer.grad_clip=0", "eval.every=0")


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_weights_that_overflow_end_the_run_in_words_with_the_rows_beside_it(job: Any, ranks: int) -> None:
    (job.folder / "lucky.py").write_text(REWARD)
    engine = "inline" if ranks == 1 else "local"
    done = job.train(
        f"--reward={job.folder / 'lucky.py'}:lucky", f"ranks={ranks}", f"engine={engine}", *BREAKS
    )
    assert done.code == 2, done.out
    assert "log-probabilities of" in done.error
    assert "is not finite itself" in done.error
    (place,) = (job.output / "not-finite").iterdir()
    assert read_batch(place).facts["rows_with_such_logprobs"]
    assert job.metrics()
