"""A run's report on this machine's own address, made again when the run has gone on."""

from __future__ import annotations

from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from rlinf_core.errors import RlinfError
from rlinf_core.report.page import page
from rlinf_core.report.reading import read_run
from rlinf_core.run.output import METRICS

HOST = "127.0.0.1"


class ReportServer(ThreadingHTTPServer):
    """Serves `/`, the page, and `/stamp`, which changes when the page would. Raises `RlinfError` for a port
    that is taken; port 0 takes any that is free."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], port: int, video_mb: float) -> None:
        self.folders = folders
        self.video_mb = video_mb
        self._made: tuple[str, bytes] = ("", b"")
        self._lock = Lock()
        self.content()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as err:
            raise RlinfError(f"--port {port}: {err.strerror}; name another one, or 0 for any") from err

    @property
    def address(self) -> str:
        """For a browser."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def stamp(self) -> str:
        """Of what the runs have written so far."""
        found = []
        for folder in self.folders:
            path = folder / METRICS
            found.append(f"{path.stat().st_mtime_ns}.{path.stat().st_size}" if path.exists() else "-")
        return " ".join(found)

    def content(self) -> bytes:
        """The page as it is now."""
        with self._lock:
            stamp = self.stamp()
            if stamp != self._made[0] or not self._made[1]:
                runs = [read_run(folder) for folder in self.folders]
                self._made = (stamp, page(runs, video_mb=self.video_mb, live=True).encode())
            return self._made[1]


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        if self.path == "/stamp":
            self._answer(200, self.server.stamp().encode(), "text/plain")
        elif self.path == "/":
            try:
                self._answer(200, self.server.content(), "text/html; charset=utf-8")
            except RlinfError as err:
                self._answer(500, str(err).encode(), "text/plain; charset=utf-8")
        else:
            self._answer(404, b"there is only /\n", "text/plain")

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A terminal is for what people ask for."""
