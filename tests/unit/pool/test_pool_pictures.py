"""Pictures through a pool: of the environments asked for, and black where a process has died."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from rlinf_core.isolation.program import Program
from rlinf_core.pool.simulator import SimulatorPool

sys.path.insert(0, str(Path(__file__).parent))
from pool_simulators import CounterConfig

SEEDS = [10, 20, 30, 40, 50]


def test_only_the_processes_of_these_environments_draw_and_a_dead_one_shows_black() -> None:
    pool = SimulatorPool(
        CounterConfig(),
        5,
        0,
        name="counter",
        target="pool_simulators:Counter",
        processes=2,
        program=Program.own(),
    )
    try:
        pool.reset(SEEDS)
        assert pool.render_some([4, 0, 2])[:, 0, 0, 0].tolist() == [50, 10, 30]
        os.kill(pool.process_ids()[1], signal.SIGKILL)
        time.sleep(0.2)
        assert pool.render_some([0, 4])[:, 0, 0, 0].tolist() == [10, 0]
        outcome = pool.step(np.zeros((5, 1, 1), dtype=np.float32))
        assert outcome.lost_N is not None
        assert outcome.lost_N.tolist()[0] is False
        assert outcome.lost_N.tolist()[4] is True
    finally:
        pool.close()
