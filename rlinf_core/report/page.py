"""The report's page: data, script and style in one HTML file.

Any: JSON values throughout.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from rlinf_core import __version__
from rlinf_core.errors import RlinfError
from rlinf_core.report.glossary import meaning
from rlinf_core.report.reading import RunRecord, differences
from rlinf_core.report.timeline import read_timeline
from rlinf_core.report.why import considered
from rlinf_core.run.trace import TRACE

KINDS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}


def page(runs: Sequence[RunRecord], *, video_mb: float = 20.0, live: bool = False) -> str:
    """Of one or more runs. A `live` page asks its server for news. Raises `RlinfError` without plotly."""
    title = " · ".join(run.name for run in runs)
    files = resources.files("rlinf_core.report")
    parts = {
        "title": html.escape(title),
        "style": files.joinpath("page.css").read_text(),
        "plotly": _plotly(),
        "data": as_script({**page_data(runs, video_mb), "live": live}),
        "script": files.joinpath("page.js").read_text(),
    }
    text = files.joinpath("page.html").read_text()
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    return text


def page_data(runs: Sequence[RunRecord], video_mb: float) -> dict[str, Any]:
    """All that the page shows."""
    budget = video_mb * 1e6
    shown = []
    for run in runs:
        videos, budget = embedded(run, budget)
        plans, no_plans = considered(run.folder)
        shown.append(
            {
                "name": run.name,
                "folder": str(run.folder),
                "steps": run.steps,
                "wanted": run.wanted,
                "settings": run.settings,
                "curves": {name: asdict(curve) for name, curve in run.curves.items()},
                "samples": run.samples,
                "notes": run.notes,
                "plans": run.plans,
                "considered": [asdict(each) for each in plans],
                "not_considered": no_plans,
                "videos": videos,
                "timeline": [asdict(step) for step in read_timeline(run.folder / TRACE)],
            }
        )
    return {
        "runs": shown,
        "meanings": {name: meaning(name) for name in sorted({name for run in runs for name in run.curves})},
        "differences": differences(runs) if len(runs) > 1 else [],
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": __version__,
    }


def embedded(run: RunRecord, budget: float) -> tuple[list[dict[str, str]], float]:
    """Videos inside the page, the newest first, as long as there is room; of the others their names."""
    found = []
    for path in sorted(run.videos, key=lambda path: path.stat().st_mtime, reverse=True):
        size = path.stat().st_size
        source = ""
        if size <= budget:
            budget -= size
            source = f"data:{KINDS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"
        found.append({"name": str(path.relative_to(run.folder)), "source": source})
    return found, budget


def as_script(data: Any) -> str:
    """JSON that nothing inside of can end the script element early."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=True, default=str)
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f"const DATA = {text};"


def write_page(path: Path, text: str) -> None:
    """Raises `RlinfError` where that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as err:
        raise RlinfError(f"--output: cannot write {path}: {err.strerror}; name another file") from err


def _plotly() -> str:
    try:
        offline = import_module("plotly.offline")
    except ImportError as err:
        raise RlinfError("rlinf report draws with plotly: pip install plotly") from err
    script: str = offline.get_plotlyjs()
    return script
