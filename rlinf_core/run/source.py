"""What a run asks its rollout for, step by step, and what it must remember to go on later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlinf_core.demos.layout import read_info
from rlinf_core.errors import DataError
from rlinf_core.flows.flow import Requests
from rlinf_core.roles.setup import algorithm_needs, build_dataset, build_model, build_turns
from rlinf_core.run.prompts import PromptSource, requests
from rlinf_core.run.seeds import derive_seed
from rlinf_core.types import EpisodeRequest, Prompt

if TYPE_CHECKING:
    from rlinf_core.api import Dataset
    from rlinf_core.config.schema import Component, RunConfig
    from rlinf_core.worker.group import GroupCall, WorkerGroup

MOST_STATES = 2**31  # simulators take seeds below it


class Source(ABC):
    """Requests of training and evaluation. Chunks are groups.

    Groups of a step are numbered on from a multiple of `most_groups`, as many as a step asks for at most.
    """

    def __init__(self, config: RunConfig, group_size: int, most_groups: int = 0) -> None:
        self.config = config
        self.group_size = group_size
        self.most_groups = most_groups or config.train.prompts_per_step

    def train(self, step: int) -> Requests:
        """What one step may ask for."""
        return Requests(
            lambda asked, count: self.draw(step, asked, count), self.config.train.prompts_per_step
        )

    @abstractmethod
    def draw(self, step: int, asked: int, count: int) -> Iterator[list[Any]]:
        """`count` groups of requests of a step that has `asked` for so many before."""

    @abstractmethod
    def eval(self) -> Iterator[list[Any]]:
        """The same requests at every evaluation."""

    @abstractmethod
    def imitate(self, actor: WorkerGroup, first: int, count: int) -> GroupCall:
        """Let the actor take `count` supervised steps of a warm start, numbered on from `first`."""

    def prompt(self, index: int) -> Prompt:
        """The prompt of a row of the data. Raises `DataError` where there is none."""
        raise DataError(f"an embodied task has no prompt {index}")

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens of a response; empty where there is none."""
        return ""

    def held_out_rows(self) -> str:
        """What the data of evaluations is known by; "" where there is none."""
        return ""

    def state_dict(self) -> dict[str, Any]:  # Any: JSON values
        """What a resumed run needs."""
        return {}

    def changes(self, state: dict[str, Any]) -> str:
        """How the data differs from that of a state, a line each; "" if it does not."""
        return ""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""


class TextSource(Source):
    """Prompts of a dataset, each asked for `group_size` times."""

    def __init__(self, config: RunConfig, group_size: int, most_groups: int = 0) -> None:
        super().__init__(config, group_size, most_groups)
        component = cast("Component", config.data)
        processor = build_model(config).processor()
        turns = build_turns(config, processor)
        room = (config.sampling.max_new_tokens, config.train.max_prompt_tokens, turns)
        train = build_dataset(component, "train", config.seed)
        self.prompts = PromptSource(train, processor, config.seed, *room)
        held_out = build_dataset(component, "eval", config.seed)
        self.held_out = PromptSource(held_out, processor, config.seed, *room)
        self.warm = PromptSource(train, processor, derive_seed(config.seed, "warm"), *room)
        self.prompts.check()
        self._imitates = algorithm_needs(config).imitates
        if self._imitates:
            self.prompts.check_demonstrations()
        if config.warm_start.steps:
            self.warm.check_demonstrations()
        self._eval_prompts = self.held_out.first(config.eval.samples)

    def draw(self, step: int, asked: int, count: int) -> Iterator[list[Any]]:
        """The next prompts of the walk, or their demonstrations where these are what is learned from."""
        if self._imitates:
            return ([replace(row, reward=0.0)] for row in self.prompts.demonstrations(count))
        drawn, seed = self.prompts.draw(count), (self.config.seed, "step", step)
        return requests(drawn, self.group_size, step * self.most_groups, *seed, asked=asked)

    def eval(self) -> Iterator[list[Any]]:
        """One request a held-out prompt."""
        return requests(self._eval_prompts, 1, 0, self.config.seed, "eval")

    def imitate(self, actor: WorkerGroup, first: int, count: int) -> GroupCall:
        """The next rows of a walk of their own."""
        size = self.config.warm_start.batch_size
        return actor.call("imitate", [self.warm.demonstrations(size) for _ in range(count)])

    def decode(self, token_ids: Sequence[int]) -> str:
        """By the model's tokenizer."""
        return self.prompts.processor.decode(token_ids)

    def prompt(self, index: int) -> Prompt:
        """Tokenised."""
        return self.prompts.prompt(index)

    def held_out_rows(self) -> str:
        """Their number and fingerprint."""
        return known_by(self.held_out.dataset)

    def state_dict(self) -> dict[str, Any]:
        """Positions, and what the data is known by."""
        return {
            "position": self.prompts.position,
            "warm_position": self.warm.position,
            "data": {name: known_by(part.dataset) for name, part in self._parts.items()},
        }

    def changes(self, state: dict[str, Any]) -> str:
        """Of the rows to train on, and of those held out."""
        then = state["data"]
        now = {name: known_by(part.dataset) for name, part in self._parts.items()}
        return "\n".join(
            f"  data ({name}): {then[name]} -> {now[name]}" for name in now if then[name] != now[name]
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the walk."""
        self.prompts.position = int(state["position"])
        self.warm.position = int(state["warm_position"])

    @property
    def _parts(self) -> dict[str, PromptSource]:
        return {"train": self.prompts, "eval": self.held_out}


class EpisodeSource(Source):
    """Initial states of a simulator, each asked for `group_size` times. A step's requests follow from
    the run seed and its number alone, so there is no position to remember."""

    def __init__(self, config: RunConfig, group_size: int, most_groups: int = 0) -> None:
        super().__init__(config, group_size, most_groups)
        if config.warm_start.steps:
            try:
                read_info(Path(config.warm_start.demonstrations))
            except DataError as err:
                raise DataError(
                    f"warm_start.demonstrations: {err}; `rlinf demos record --output FOLDER` writes one"
                ) from err

    def draw(self, step: int, asked: int, count: int) -> Iterator[list[Any]]:
        """Groups of episodes."""
        offsets = range(asked, asked + count)
        seed = self.config.seed
        return episodes(seed, offsets, self.group_size, step * self.most_groups, "step", step)

    def eval(self) -> Iterator[list[Any]]:
        """One episode for each of `eval.samples` initial states."""
        return episodes(self.config.seed, range(self.config.eval.samples), 1, 0, "eval")

    def imitate(self, actor: WorkerGroup, first: int, count: int) -> GroupCall:
        """Decisions of recorded episodes, which every rank reads; a step's follow from its number."""
        return actor.call("imitate_recorded", first, count)


def episodes(
    seed: int, offsets: range, replicas: int, first_group: int, *purpose: int | str
) -> Iterator[list[EpisodeRequest]]:
    """One chunk an initial state: its group of requests, each with a seed of its own."""
    for offset in offsets:
        initial_state = derive_seed(seed, *purpose, "state", offset) % MOST_STATES
        yield [
            EpisodeRequest(
                group=first_group + offset,
                replica=replica,
                initial_state=initial_state,
                seed=derive_seed(seed, *purpose, "actions", offset, replica),
            )
            for replica in range(replicas)
        ]


def known_by(dataset: Dataset) -> str:
    """How a run tells whether data is what it was."""
    return f"{len(dataset)} rows, fingerprint {dataset.fingerprint()}"
