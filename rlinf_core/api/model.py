"""The model interface: one definition of the policy for rollout, reference and trainer.

Axes: B rows, T decision steps, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rlinf_core.api.algorithm import PolicyOutputs
    from rlinf_core.api.capabilities import LogprobLevel
    from rlinf_core.api.simulator import Space
    from rlinf_core.types import Experience, IntArray, Message, Picture, Prompt, Sampling

Want = Literal["logprobs", "entropy", "values"]
Collator = Callable[["Tensor", int], "dict[str, Tensor]"]  # of rows at int64 `rows_B`, padded to `width`


class TextProcessor(ABC):
    """Text to token ids and back. Ids are made once; nothing re-tokenises a response."""

    eos_ids: frozenset[int]
    pad_id: int
    context_length: int

    @abstractmethod
    def encode_prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        """Ids that the model continues: exactly one BOS if the model has one, chat template applied
        to messages (or to a text, as one user message, where the model config says so)."""

    def encode_with_images(self, prompt: str | Sequence[Message], images: Sequence[Picture]) -> list[int]:
        """Ids of a prompt about images, with all places that these take. An image stands where the text says
        `<image>`; without that, images come first. Raises `ModelError` for a model that does not see."""
        from rlinf_core.errors import ModelError

        raise ModelError(
            "the data have images, but the model reads text alone; choose a model that sees (`rlinf plugins "
            "list models`), or leave the images out with data.image_key=''"
        )

    @abstractmethod
    def encode_response(self, text: str) -> list[int]:
        """Ids of a demonstration, closed by an end-of-sequence id."""

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text within a response, such as what a tool says: nothing is added, special tokens in it
        are left out, and so is what the model cannot write. Raises `ModelError` for a model without tools."""
        from rlinf_core.errors import ModelError

        raise ModelError("this model reads no answers of tools; set tools=[], or choose another model")

    def encode_turn(self, messages: Sequence[Message]) -> list[int]:
        """Ids between the end of the model's turn (its end-of-sequence id) and the beginning of its next one,
        in which tools or users say something, by the chat template. Raises `ModelError` without one."""
        from rlinf_core.errors import ModelError

        raise ModelError("agent.turns: the model has no chat template; set agent.turns=plain")

    def describe_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """From now on the chat template tells of these tools in prompts, each a function as JSON schema. No
        effect without a chat template."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int] | IntArray) -> str:
        """Text without special tokens."""


@dataclass
class ActionSample:
    """Actions of N environments with the behaviour policy's log-probabilities.

    Policies of chunks give `logprobs_NC`, so that actions which are not executed can be left out. At a
    finer level than the chunk they give `logprobs_NK` instead: K = C, or C times A, the tokens of the first
    action first.

    `latents` are recorded beside the actions for models that draw something else and make actions of it
    (tokens, a chain of denoising steps), so that `policy_outputs` can judge exactly what was drawn.
    """

    actions: Tensor  # [N, C, A] float, or [N] int64
    logprobs_N: Tensor
    logprobs_NC: Tensor | None = None  # sums to logprobs_N
    logprobs_NK: Tensor | None = None  # sums to logprobs_N
    latents: Tensor | None = None  # [N, ...]; comes back as `Trajectory.latents` [D, ...]


@dataclass(frozen=True)
class TokenRows:
    """What a trainer with a network of its own reads of collated text rows. Axes: B rows, S positions."""

    ids_BS: Tensor  # int64; prompt, then response, then padding
    prompt_lengths_B: Tensor
    response_lengths_B: Tensor
    width: int  # response positions of what it returns


class Decoder(ABC):
    """A key/value-cached incremental decoder over a fixed set of row slots; inference only.

    A slot is admitted by `prefill`, advanced by `step`, given up by `release`. Slots may hold rows
    of different lengths. Logits are float32 `[rows, V]` for the next token of each row.
    """

    @abstractmethod
    def refresh(self) -> None:
        """Read the module's weights again; call after every weight update."""

    @abstractmethod
    def prefill(self, slots: Sequence[int], prompts: Sequence[IntArray]) -> Tensor:
        """Start rows in free slots. Rows with equal prompts may share the computation."""

    def prefill_prompts(self, slots: Sequence[int], prompts: Sequence[Prompt]) -> Tensor:
        """As `prefill`; decoders of models that see read the prompts' images too."""
        return self.prefill(slots, [prompt.token_ids for prompt in prompts])

    @abstractmethod
    def step(self, slots: Sequence[int], tokens: Tensor) -> Tensor:
        """Append one token (int64 `[rows]`) to each named slot."""

    @abstractmethod
    def release(self, slots: Sequence[int]) -> None:
        """Free slots, to be admitted again."""

    def memory_bytes(self) -> float:
        """What the cache holds; 0 = unknown."""
        return 0.0


class Model(ABC):
    """A policy architecture with its processor. Constructed with its config dataclass."""

    def __init__(self, config: Any) -> None:  # Any: each plugin has its own config dataclass
        self.config = config

    def bind(self, observation_space: Mapping[str, Space], action_space: Space) -> None:
        """Take the simulator's spaces (embodied models); called once, before `module`.

        Raises `ModelError` for spaces that the model cannot serve.
        """

    def add_value_head(self) -> None:
        """From now on `module` has a value head, so that `values` may be asked for. Called at most once,
        before `module`. Raises `ModelError` if the model cannot have one."""
        from rlinf_core.errors import ModelError

        raise ModelError(f"model {type(self).__name__} cannot have a value head")

    def set_logprob_level(self, level: LogprobLevel) -> None:
        """What of a decision gets a log-probability of its own (embodied models); called before `module`.

        With `k` of them in a decision (C actions of a chunk, or C times A tokens), rows have `T = k *
        decisions` positions: `act` gives `logprobs_NK`, `policy_outputs` `[B, T]`, all k positions of a
        decision with the value of the state that it was made in. `collate` counts `width` in positions.
        """
        from rlinf_core.errors import ModelError

        if level != "chunk":
            raise ModelError(f"model {type(self).__name__} has log-probabilities of whole chunks only")

    @abstractmethod
    def module(self, seed: int = 0) -> nn.Module:
        """A new module on the CPU, weights loaded, or initialised from `seed`; float32 unless the
        config says otherwise. Raises `ModelError`."""

    @abstractmethod
    def collate(self, rows: Sequence[Experience], width: int | None = None) -> dict[str, Tensor]:
        """Model inputs of these rows, right-padded to T = the longest row or `width`. They say themselves how
        long each row is, so that whoever computes them may leave the padding out."""

    def collator(self, rows: Sequence[Experience]) -> Collator | None:
        """`collate` of any of these rows, by their places, for a step of many small batches that come back
        to them again and again. None where that is not worth the memory that it holds."""
        return None

    @abstractmethod
    def policy_outputs(
        self,
        module: nn.Module,
        inputs: Mapping[str, Tensor],
        want: frozenset[Want],
        sampling: Sampling | None = None,
    ) -> PolicyOutputs:
        """`[B, T]` outputs for collated inputs under the sampling transform. Called inside the root
        module's forward, with gradient or without."""

    def token_rows(self, inputs: Mapping[str, Tensor]) -> TokenRows:
        """Collated inputs as plain tokens, for trainers that compute them with a network of their own, made
        of the weights and the configuration of `module`."""
        from rlinf_core.errors import ModelError

        raise ModelError(
            f"model {type(self).__name__} does not give its rows as plain tokens; train it with a backend "
            "that runs the model's own module"
        )

    @property
    def padding_free(self) -> bool:
        """Whether `policy_outputs` computes real tokens alone, so that rows of any lengths may share a
        micro-batch; known after `module`."""
        return False

    def row_cost(self, tokens: int) -> float:
        """What a row of so many tokens costs to compute, in any unit; rows are dealt to ranks by it."""
        return float(tokens)

    def blocks(self, module: nn.Module) -> list[nn.Module]:
        """Repeated units, for sharding and gradient checkpointing."""
        return []

    def adaptable(self, module: nn.Module) -> list[nn.Module]:
        """The parts of `module` whose linear layers may get adapters."""
        return [module]

    def value_head(self, module: nn.Module) -> nn.Module | None:
        """The part of `module` that values alone come from: trained as a whole beside adapters, which it
        gets none of, and in float32. It is called, not read, for values. None without `add_value_head`."""
        return None

    def processor(self) -> TextProcessor:
        """The text processor. Embodied models without text have none."""
        from rlinf_core.errors import ModelError

        raise ModelError(f"model {type(self).__name__} has no text processor; it cannot serve a text task")

    def decoder(self, module: nn.Module, slots: int, max_length: int) -> Decoder:
        """An incremental decoder over `module` (text models)."""
        from rlinf_core.errors import ModelError

        raise ModelError(f"model {type(self).__name__} has no decoder; it cannot serve a text task")

    def act(
        self,
        module: nn.Module,
        observations: Mapping[str, Tensor],
        seeds: Sequence[int],
        greedy: bool = False,
    ) -> ActionSample:
        """Actions for N environments (embodied models); row i draws from `seeds[i]` alone."""
        from rlinf_core.errors import ModelError

        raise ModelError(f"model {type(self).__name__} cannot act; it cannot serve an embodied task")

    @property
    def chunk(self) -> int:
        """Actions of a decision (embodied models), known after `bind`."""
        return 1

    def label(self, actions: Tensor, seeds: Sequence[int]) -> ActionSample:
        """What `act` would have returned, had it drawn these actions `[N, C, A]` (or `[N]` int64), which
        somebody else chose: `latents` as it records them, and log-probabilities of as many positions, whose
        values are of no account (`provides.demonstrations`). Row i draws what is to be drawn from `seeds[i]`.
        """
        from rlinf_core.errors import ModelError

        raise ModelError(f"model {type(self).__name__} does not learn from demonstrations")

    def export_architecture(self, path: Path) -> None:
        """Write into `path` what an engine that builds the model itself needs: configuration and processor,
        without weights. Raises `ModelError` for models that no other program knows."""
        from rlinf_core.errors import ModelError

        raise ModelError(
            f"model {type(self).__name__} cannot be built by other programs; choose a rollout engine that "
            "runs the model itself"
        )

    def exported_name(self, name: str) -> str | None:
        """The name in the model's own format of a weight of `module`; None for one that is not in it."""
        return name

    def export(self, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
        """Write full weights (and what else is needed to load them elsewhere) into `path`."""
        from rlinf_core.errors import ModelError

        raise ModelError(f"model {type(self).__name__} has no export")

    def convert_export(self, folder: Path, form: str) -> None:
        """Turn what `export` wrote into the form that another program takes, in its place (`rlinf export
        --format`). Raises `ModelError` for forms that the model does not know."""
        from rlinf_core.errors import ModelError

        raise ModelError(
            f"--format {form}: model {type(self).__name__} does not write it; leave --format out for its own"
        )
