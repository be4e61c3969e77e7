"""The API that outside agents call: chat completions in the form of OpenAI's, on this machine alone."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"
_ENDS = 500  # and above: the rollout has ended, not the caller's mistake
_log = logging.getLogger(__name__)
LARGEST = 16 << 20  # bytes of a call
Json = dict[str, Any]  # Any: JSON values


class CallError(Exception):
    """A call that cannot be answered; the caller reads why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Endpoint(ThreadingHTTPServer):
    """Answers `/v1/chat/completions` and `/v1/models`. `complete` gets the key of an episode and the call,
    and gives the choice with its usage, or raises `CallError`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, complete: Callable[[str, Mapping[str, Any]], tuple[Json, Json]], models: Sequence[str]
    ) -> None:
        super().__init__((HOST, 0), _Handler)
        self.complete = complete
        self.models = models

    @property
    def base_url(self) -> str:
        """For clients."""
        return f"http://{HOST}:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.rstrip("/") != "/v1/models":
            self._send(404, _error(f"there is no {self.path}; there are /v1/chat/completions and /v1/models"))
            return
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "rlinf"} for name in self.server.models
        ]
        self._send(200, {"object": "list", "data": data})

    def do_POST(self) -> None:
        try:
            call = self._read()
            choice, usage = self.server.complete(self._key(), call)
        except CallError as err:
            if err.status < _ENDS:
                _log.warning("a call of the agent was refused (%d): %s", err.status, err)
            self._send(err.status, _error(str(err)))
            return
        model = call.get("model") or self.server.models[0]
        made = {"id": f"chatcmpl-{time.monotonic_ns():x}", "created": int(time.time()), "model": model}
        if call.get("stream"):
            self._stream(made, choice, usage)
        else:
            self._send(200, {**made, "object": "chat.completion", "choices": [choice], "usage": usage})

    def log_message(self, format: str, *args: Any) -> None:
        """Calls are not logged one by one."""

    def _read(self) -> Json:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LARGEST:
            self.close_connection = True
            raise CallError(413, f"a call has a Content-Length of at most {LARGEST} bytes")
        body = self.rfile.read(int(length))
        if self.path.rstrip("/") != "/v1/chat/completions":
            raise CallError(404, f"there is no {self.path}; there is /v1/chat/completions")
        try:
            call = json.loads(body)
        except (ValueError, RecursionError) as err:
            raise CallError(400, f"a call is a JSON object: {err}") from err
        if not isinstance(call, dict):
            raise CallError(400, "a call is a JSON object")
        return call

    def _key(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ").strip()

    def _stream(self, made: Json, choice: Json, usage: Json) -> None:
        """All at once, in the form of a stream."""
        message = dict(choice["message"])
        for number, called in enumerate(message.get("tool_calls") or ()):
            called["index"] = number
        delta = {"index": 0, "delta": message, "finish_reason": choice["finish_reason"]}
        chunk = {**made, "object": "chat.completion.chunk", "choices": [delta], "usage": usage}
        text = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
        self._write(200, "text/event-stream", text)

    def _send(self, status: int, told: Json) -> None:
        self._write(status, "application/json", json.dumps(told).encode())

    def _write(self, status: int, kind: str, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the agent has gone
            self.close_connection = True


def _error(message: str) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "code": None, "param": None}}
