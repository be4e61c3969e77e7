"""Calls of tools: arguments are looked at, mistakes become text, and none takes longer than it may."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf_core.agents.formats import ToolCall
from rlinf_core.errors import RlinfError, ToolError, suggest

if TYPE_CHECKING:
    from rlinf_core.api.tool import Tool

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """What the model reads of a call."""

    text: str
    failed: bool = False


class Pending:
    """A call under way."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._done = threading.Event()
        self._result: Result | RlinfError | None = None

    def put(self, result: Result | RlinfError) -> None:
        """It has ended."""
        self._result = result
        self._done.set()

    def over(self) -> bool:
        """It has ended, or it takes too long."""
        return self._done.is_set() or time.monotonic() >= self.deadline

    def wait(self) -> Result | None:
        """Until it is over; None if it takes too long. Raises what is no mistake of the model."""
        self._done.wait(max(0.0, self.deadline - time.monotonic()))
        if isinstance(self._result, RlinfError):
            raise self._result
        return self._result


class Toolbox:
    """The tools of a run by name. Calls that are not instant have threads of their own, up to `concurrency`
    at a time; one that takes longer than `timeout_s` is left alone, and its thread is replaced."""

    def __init__(self, tools: Mapping[str, Tool], *, timeout_s: float, concurrency: int) -> None:
        self.tools = dict(tools)
        self.timeout_s = timeout_s
        self.concurrency = concurrency
        self._jobs: queue.SimpleQueue[tuple[Pending, Tool, ToolCall] | None] = queue.SimpleQueue()
        self._threads = 0

    def begin(self, call: ToolCall) -> Pending | Result:
        """Start a call, or say at once what came of it."""
        problem = call.problem or self._problem(call)
        if problem:
            return Result(f"error: {problem}", failed=True)
        tool = self.tools[call.name]
        if tool.instant:
            return _called(tool, call)
        pending = Pending(time.monotonic() + self.timeout_s)
        self._jobs.put((pending, tool, call))
        if self._threads < self.concurrency:
            self._threads += 1
            threading.Thread(target=self._work, daemon=True, name=f"tool {call.name}").start()
        return pending

    def end(self, begun: Sequence[Pending | Result]) -> list[Result]:
        """What came of calls, once all are over."""
        return [each if isinstance(each, Result) else self._late(each.wait()) for each in begun]

    def close(self) -> None:
        """Threads end with what they do; tools end what they have started."""
        for _ in range(self._threads):
            self._jobs.put(None)
        for tool in self.tools.values():
            tool.close()

    def _late(self, result: Result | None) -> Result:
        if result is not None:
            return result
        self._threads -= 1  # it may never come back
        return Result(f"error: no result within {self.timeout_s:g} s", failed=True)

    def _problem(self, call: ToolCall) -> str:
        if call.name not in self.tools:
            return (
                f"no tool {call.name!r}; there are: {', '.join(self.tools)}.{suggest(call.name, self.tools)}"
            )
        schema = self.tools[call.name].parameters
        known, needed = schema.get("properties", {}), schema.get("required", ())
        strange = [name for name in call.arguments if name not in known]
        missing = [name for name in needed if name not in call.arguments]
        if strange or missing:
            wrong = [f"unknown: {', '.join(strange)}"] * bool(strange)
            wrong += [f"missing: {', '.join(missing)}"] * bool(missing)
            return f"{call.name} takes the arguments {', '.join(known)}; {'; '.join(wrong)}"
        return ""

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            pending, tool, call = job
            try:
                pending.put(_called(tool, call))
            except RlinfError as err:
                pending.put(err)


def _called(tool: Tool, call: ToolCall) -> Result:
    try:
        return Result(str(tool.call(call.arguments)))
    except ToolError as err:
        return Result(f"error: {err}", failed=True)
    except RlinfError:
        raise
    except Exception as err:
        _log.warning("tool %s failed with %r", call.name, dict[str, Any](call.arguments), exc_info=True)
        return Result(f"error: {type(err).__name__}", failed=True)
