"""One episode of an outside agent: what its program gets, and how it ends."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_core.agents.conversation import Conversation, content_of
from rlinf_core.types import OWN, Request, Sample

if TYPE_CHECKING:
    from rlinf_core.agents.turns import Turns

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Episode:
    """What a program gets: a row of the data, and where the model answers."""

    base_url: str  # of the API, such as http://127.0.0.1:41237/v1
    api_key: str  # says whose call it is; good for this episode
    prompt: str
    answer: Any = None  # as the dataset gave it
    meta: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0  # of whatever the program draws itself


class Running:
    """An episode under way, in a thread of its own."""

    def __init__(
        self, request: Request, told: Episode, turns: Mapping[str, Turns], limit_s: float
    ) -> None:  # by policy
        self.request = request
        self.told = told
        self.conversations = {name: Conversation(each) for name, each in turns.items()}
        self.talking = threading.Lock()  # held while a call is put in its place
        self.deadline = time.monotonic() + limit_s
        self.limit_s = limit_s
        self.error = ""
        self.returned: dict[str, float] = {}  # by policy
        self._over = threading.Event()

    def start(self, program: Callable[..., Any], ended: Callable[[], None]) -> None:
        """Call the program; `ended` is called in its thread once it has returned."""
        run = threading.Thread(target=self._run, args=(program, ended), daemon=True, name="agent")
        run.start()

    def over(self) -> bool:
        """The program has returned, or takes too long."""
        if not self._over.is_set() and time.monotonic() >= self.deadline:
            self.error = self.error or f"agent.program took longer than {self.limit_s:g} s (agent.episode_s)"
            return True
        return self._over.is_set()

    def sample(self) -> Sample:
        """Of the run's own policy, with those of others; one with an error where there is none."""
        said = {name: self._said(name) for name in self.conversations}
        own = said.pop(OWN)
        if own is None:
            whose = f" {OWN!r}" if said else ""
            own = _nothing(
                self.request, self.error or f"agent.program returned without a call of the model{whose}"
            )
        own.others = {name: each for name, each in said.items() if each is not None}
        return own

    def _said(self, policy: str) -> Sample | None:
        """The branch in which it said most."""
        conversation = self.conversations[policy]
        branch = conversation.longest()
        request, error = self.request, self.error
        if branch is None or branch.sample is None:
            return None
        prompt = replace(request.prompt, token_ids=branch.prompt_ids, images=())
        made = branch.sample
        made.group, made.replica, made.seed = request.group, request.replica, request.seed
        made.prompt, made.error, made.returned = prompt, error or None, self.returned.get(policy)
        made.reply = content_of(branch.messages[-1])
        made.tool_calls = sum(message["role"] == "tool" for message in branch.messages)
        made.text = conversation.turns.processor.decode(made.response_ids)
        return made

    def _run(self, program: Callable[..., Any], ended: Callable[[], None]) -> None:
        try:
            found = program(self.told)
            if inspect.iscoroutine(found):
                found = asyncio.run(found)
            self.returned = self._rewards(found)
        except Exception as err:
            _log.exception("agent.program failed")
            self.error = f"agent.program failed: {type(err).__name__}: {err}"
        self._over.set()
        ended()

    def _rewards(self, found: Any) -> dict[str, float]:  # Any: what a program returns
        """A number is everybody's; a mapping says whose."""
        if found is None:
            return {}
        if not isinstance(found, Mapping):
            return dict.fromkeys(self.conversations, float(found))
        if foreign := sorted(set(found) - set(self.conversations)):
            raise ValueError(
                f"it returned a reward for {foreign[0]!r}; there are {', '.join(self.conversations)}"
            )
        return {name: float(value) for name, value in found.items() if value is not None}


def _nothing(request: Request, error: str) -> Sample:
    """A row that is not trained."""
    return Sample(
        group=request.group,
        replica=request.replica,
        seed=request.seed,
        mask=np.zeros(1, np.bool_),
        logprobs=np.zeros(1, np.float32),
        weight_version=-1,
        finish="abort",
        prompt=request.prompt,
        response_ids=np.zeros(1, np.int64),
        error=error,
        tool_calls=0,
    )
