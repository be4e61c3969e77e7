"""The rollout role of embodied tasks: the policy that acts, beside the environments or apart from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from numpy.typing import NDArray

from rlinf_core.comm.places import common_dtype, copy_into
from rlinf_core.comm.spans import span
from rlinf_core.errors import ModelError
from rlinf_core.roles.setup import Spaces, build_acting_module, build_model
from rlinf_core.roles.weights import Receiver
from rlinf_core.worker import WorkerContext, on_host

if TYPE_CHECKING:
    from rlinf_core.api import ActionSample, WeightBucket
    from rlinf_core.comm.remote import ChannelHandle, RemoteChannel
    from rlinf_core.config.schema import RunConfig


@dataclass(frozen=True)
class Question:
    """What some environments show, for the policy to act on; None as `shown` says goodbye."""

    asker: tuple[int, int]  # environment rank, and which group of its environments
    shown: Mapping[str, NDArray[Any]] | None = None
    seeds: Sequence[int] = ()
    greedy: bool = False


@dataclass(frozen=True)
class Answer:
    """Actions, and the weight version that chose them."""

    sample: ActionSample
    version: int


class PolicyWorker(Receiver):
    """One rank of the policy that acts."""

    def __init__(self, context: WorkerContext, config: RunConfig, *, spaces: Spaces) -> None:
        super().__init__(context)
        self.checks = config.train.check_weights
        self.model = build_model(config, spaces)
        self.module = build_acting_module(config, self.model).to(context.device).eval()
        self.version = -1
        self._askers = 0
        self._questions: RemoteChannel[Any] | None = None
        self._answers: RemoteChannel[Any] | None = None

    def renumber(self, rank: int, size: int) -> None:
        """Others will ask."""
        super().renumber(rank, size)
        self._questions = self._answers = None
        self._askers = 0

    def connect(self, questions: ChannelHandle, answers: ChannelHandle, askers: int) -> None:
        """Act for environments in other processes, of which `askers` groups ask this rank."""
        self._questions = questions.connect(self.context.name)
        self._answers = answers.connect(self.context.name)
        self._askers = askers

    def weight_dtype(self) -> str:
        """Of the module that acts."""
        return common_dtype(self.module.state_dict().values())

    @torch.no_grad()
    def load_weights(self, buckets: Iterable[WeightBucket]) -> int:
        """Copy one weight version, completely; returns it. Raises `ModelError` for foreign names; the policy
        does not act again before a version was copied whole."""
        own = self.module.state_dict()
        missing = set(own)
        first = self.version < 0
        version, self.version = -1, -1
        for bucket in buckets:
            foreign = sorted(set(bucket.tensors) - set(own))
            if foreign:
                raise ModelError(f"the policy has no weight {foreign[0]!r}; it has {', '.join(sorted(own))}")
            for name, tensor in bucket.tensors.items():
                copy_into(own[name], tensor)
            missing -= set(bucket.tensors)
            version = bucket.version
        if missing and (first or missing == set(own)):  # later ones bring what is trained
            raise ModelError(f"the trainer sent no weight {min(missing)!r} for the policy that acts")
        self.version = version
        return version

    def serve(self) -> None:
        """Answer the questions of one rollout; returns at once where the environments are in this process."""
        if self._questions is None or self._answers is None:
            return
        asking = self._askers
        try:
            while asking:
                question: Question = self._questions.get(key=self.context.rank)
                if question.shown is None:
                    asking -= 1
                else:
                    with span("run", samples=len(question.seeds), name="act"):
                        answer = self.answer(question)
                    self._answers.put(answer, key=question.asker)
        except BaseException as error:
            self._answers.abandon(error)
            raise

    @torch.inference_mode()
    def answer(self, question: Question) -> Answer:
        """Act. Raises `ModelError` without a whole version of weights."""
        if self.version < 0:
            raise ModelError("the policy that acts has no complete weights; load_weights comes first")
        device = self.context.device
        shown = question.shown or {}
        observations = {name: torch.from_numpy(array).to(device) for name, array in shown.items()}
        sample = self.model.act(self.module, observations, question.seeds, question.greedy)
        tensors = {name: value.cpu() for name, value in vars(sample).items() if value is not None}
        return Answer(replace(sample, **tensors), self.version)

    @on_host
    def memory_bytes(self) -> float:
        """Of the weights."""
        return float(sum(tensor.nbytes for tensor in self.module.state_dict().values()))

    def onload(self) -> None:
        """Bring the weights onto the device."""
        self.module.to(self.context.device)

    def offload(self) -> None:
        """Free the device for others."""
        self.module.to("cpu")


class Link(Protocol):
    """How environments reach the policy: at most one open question a group."""

    prompt: bool  # what is asked is answered at once

    def ask(self, question: Question) -> None:
        """Hand a question over."""

    def answer(self, asker: tuple[int, int]) -> Answer:
        """Wait for the answer."""

    def goodbye(self, asker: tuple[int, int]) -> None:
        """This rollout has no more questions from this group."""


class Beside:
    """The policy is in this process."""

    prompt = True

    def __init__(self, policy: PolicyWorker) -> None:
        self._policy = policy
        self._answers: dict[tuple[int, int], Answer] = {}

    def ask(self, question: Question) -> None:
        """Answered at once."""
        with span("run", len(question.seeds), "act", self._policy.context.name):
            self._answers[question.asker] = self._policy.answer(question)

    def answer(self, asker: tuple[int, int]) -> Answer:
        """The answer."""
        return self._answers.pop(asker)

    def goodbye(self, asker: tuple[int, int]) -> None:
        """Nobody waits."""
        self._answers.pop(asker, None)


class Apart:
    """The policy's ranks are in other processes. A group always asks the same rank."""

    prompt = False

    def __init__(
        self, questions: RemoteChannel[Any], answers: RemoteChannel[Any], ranks: Sequence[int]
    ) -> None:
        self._questions = questions
        self._answers = answers
        self._ranks = ranks  # of each of this worker's groups
        self._open: set[tuple[int, int]] = set()

    def ask(self, question: Question) -> None:
        """Goes to the group's rank."""
        self._open.add(question.asker)
        self._questions.put(question, key=self._ranks[question.asker[1]])

    def answer(self, asker: tuple[int, int]) -> Answer:
        """Comes back under the group's key."""
        answer: Answer = self._answers.get(key=asker)
        self._open.discard(asker)
        return answer

    def goodbye(self, asker: tuple[int, int]) -> None:
        """An answer still on its way is taken, so that the next rollout does not meet it."""
        if asker in self._open:
            self.answer(asker)
        self._questions.put(Question(asker), key=self._ranks[asker[1]])
