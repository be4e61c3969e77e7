"""The page as a browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.errors import RlinfError
from rlinf_core.report.page import as_script, page
from rlinf_core.report.reading import read_run
from rlinf_core.report.serve import ReportServer

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
HOSTILE = "</script><script>document.title='taken over'</script><b>bold</b>"


def a_run(folder: Path, shift: float = 0.0) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(f"seed: {shift}\nalgo: {{name: some}}\ntrain: {{steps: 2}}\n")
    metrics = [{"step": step, "train/reward": step + shift, "train/samples": 8.0} for step in (1, 2)]
    sample = {"step": 2, "group": 0, "replica": 1, "reward": 1.0, "reward_parts": {"exact": 1.0}}
    sample |= {"length": 2, "finish": "stop", "weight_version": 1, "prompt": HOSTILE, "response": "ab"}
    sample |= {"tokens": ["a", "b"], "advantages": [0.5, -0.25], "logprobs": [-0.1, -2.0]}
    write(folder / "metrics.jsonl", metrics)
    write(folder / "samples.jsonl", [sample])
    write(folder / "notes.jsonl", [{"step": 1, "kind": "warning", "text": "mind this"}])
    (folder / "plan.yaml").write_text("mode: collocated\n")
    (folder / "videos").mkdir()
    (folder / "videos" / "small.gif").write_bytes(b"GIF89a" + bytes(10))
    (folder / "videos" / "large.gif").write_bytes(b"GIF89a" + bytes(3000))
    return folder


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def shown(target: str, tmp_path: Path) -> str:
    """The document after its scripts have run."""
    if BROWSER is None:
        pytest.skip("needs a browser (chromium)")
    command = [BROWSER, *FLAGS, *QUIET, f"--user-data-dir={tmp_path / 'browser'}"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=8000", "--enable-logging=stderr", "--dump-dom", target],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "Uncaught" not in done.stderr, done.stderr
    return done.stdout


def test_a_page_shows_every_section_of_two_runs_and_runs_nothing_that_a_model_wrote(tmp_path: Path) -> None:
    runs = [read_run(a_run(tmp_path / name, shift)) for name, shift in (("one", 0.0), ("two", 5.0))]
    target = tmp_path / "report.html"
    target.write_text(page(runs, video_mb=0.001))
    document = shown(target.as_uri(), tmp_path)
    body = re.sub(r"<script>.*?</script>", "", document, flags=re.DOTALL)
    for wanted in ("Curves", "Samples", "Episodes", "Plan", "Settings", "Notes and warnings"):
        assert f"<h2>{wanted}</h2>" in body
    assert "<title>one · two</title>" in body
    assert "&lt;/script&gt;&lt;script&gt;" in body
    assert "<b>bold</b>" not in body
    assert body.count('class="js-plotly-plot"') == 1 or body.count("js-plotly-plot") == 1
    assert "the same all the time: samples 8" in body
    assert re.search(r'title="advantages 0.5, logprobs -0.1"[^>]*>a<', body)
    assert "<td>seed</td><td>0</td><td>5</td>" in body.replace("0.0", "0").replace("5.0", "5")
    assert body.count("mind this") == 2
    assert body.count("data:image/gif") == 2
    assert "2 more in the runs' folders" in body


def test_nothing_inside_the_data_ends_its_script() -> None:
    assert "<" not in as_script({"text": HOSTILE})
    assert json.loads(as_script({"a": HOSTILE}).removeprefix("const DATA = ").rstrip(";")) == {"a": HOSTILE}


def test_a_served_page_follows_its_run_and_answers_nobody_else(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "one")
    with ReportServer([folder], 0, 1.0) as server:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def get(path: str) -> str:
            with urllib.request.urlopen(server.address + path, timeout=20) as answer:
                return str(answer.read().decode())

        before = get("stamp")
        assert '"train/reward":{"steps":[1,2]' in get("")
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 3, "train/reward": 9.0}\n')
        assert get("stamp") != before
        assert '"train/reward":{"steps":[1,2,3]' in get("")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get("../config.yaml")
        with pytest.raises(RlinfError, match="name another one, or 0 for any"):
            ReportServer([folder], server.server_address[1], 1.0)
        server.shutdown()
