"""A run takes no more memory after many steps than after some."""

from __future__ import annotations

from typing import Any

import pytest

WATCHED = '''
def noted(prompts, responses, answers, metas):
    """The share of right characters; notes what this process holds, in pages."""
    with open("/proc/self/statm") as now, open({path!r}, "a") as log:
        log.write(now.read().split()[1] + "\\n")
    return [sum(a == b for a, b in zip(r, x)) / len(x) for r, x in zip(responses, answers)]
'''


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_memory_is_flat_over_two_hundred_steps_with_their_checkpoints(job: Any) -> None:
    """All in one process, rewards included; the last hundred steps add less than a hundredth."""
    log = job.folder / "pages"
    (job.folder / "watched.py").write_text(WATCHED.format(path=str(log)))
    done = job.train(
        f"--reward={job.folder / 'watched.py'}:noted",
        *("reward_pool.workers=0", "train.steps=200", "eval.every=0", "checkpoint.every=10"),
        "checkpoint.export=false",
    )
    assert done.code == 0, done.err
    pages = [int(line) for line in log.read_text().split()]
    assert len(pages) >= 200
    middle, end = max(pages[80:120]), max(pages[-40:])
    assert end < 1.01 * middle, f"{middle} pages after a hundred steps, {end} after two hundred"
