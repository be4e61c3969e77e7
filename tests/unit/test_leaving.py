"""Processes that end without taking their interpreter apart."""

from __future__ import annotations

import subprocess
import sys

ENDING = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from rlinf_core.leaving import leave

class Large:
    def __del__(self):
        print("dismantled")

kept = Large()
pool = ThreadPoolExecutor(1)  # whose thread waits for work until the interpreter ends
pool.submit(print, "worked").result()
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
atexit.register(print, "registered")
sys.stdout.write("printed;")
leave(7)
"""


def test_a_process_that_leaves_waits_for_threads_runs_what_was_registered_and_writes_all() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 7
    assert ended.stdout == "worked\nprinted;thread\nregistered\n"
    assert ended.stderr == ""
