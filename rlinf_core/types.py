"""What travels between workers: prompts, requests, samples and trajectories (numpy only, no torch).

Axes: P prompt tokens, T decision steps (response tokens, or environment steps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]
    FloatArray = NDArray[np.float32]
    BoolArray = NDArray[np.bool_]
    Picture = NDArray[np.uint8]  # [H, W, 3], red, green, blue

FinishReason = Literal["stop", "length", "abort"]
OWN = "policy"  # the name of a run's own policy among others
Message = Mapping[str, Any]  # texts "role" and "content"; of an assistant perhaps "tool_calls"


@dataclass(frozen=True)
class Row:
    """One dataset row: the prompt as text or chat messages, and what the reward needs."""

    prompt: str | list[Message]
    answer: Any = None  # whatever the dataset holds; only rewards read it
    meta: Mapping[str, Any] = field(default_factory=dict)
    demonstration: str | list[Message] | None = (
        None  # a response to imitate; messages if it has several turns
    )
    images: tuple[Picture, ...] = field(default=(), compare=False)  # what the prompt is about


@dataclass(frozen=True)
class Prompt:
    """A tokenised row. `index` is its position in the dataset and never depends on shuffling."""

    index: int
    token_ids: IntArray  # [P]
    text: str
    answer: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[Picture, ...] = field(default=(), compare=False)  # those that `token_ids` have places for


@dataclass(frozen=True)
class Begun:
    """The first tokens of a response that goes on: its generation was interrupted, or tools have answered."""

    response_ids: IntArray  # [T]
    logprobs: FloatArray  # [T]
    versions: IntArray  # [T]; of the weights that drew them
    mask: BoolArray | None = None  # [T]; False where tools wrote; None = nowhere
    tool_calls: int | None = None  # so far; None = there are no tools
    tool_errors: int = 0  # of these calls


@dataclass(frozen=True)
class Request:
    """Ask for one response. Requests of one `group` share a prompt; `replica` counts within it."""

    prompt: Prompt
    group: int
    replica: int
    seed: int
    begun: Begun | None = field(default=None, compare=False)  # to be continued
    until: int = field(default=0, compare=False)  # most tokens, for now; 0 = as sampling says
    policy: str = OWN  # of several, that which is asked


@dataclass(frozen=True)
class EpisodeRequest:
    """Ask for one episode. Requests of one `group` start from the same initial state."""

    group: int
    replica: int
    initial_state: int  # the seed that the simulator is reset with
    seed: int  # of the policy's draws
    film: str = ""  # file name, without suffix, of what is to be seen of it; "" = nothing


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; rollout and trainer apply the same transform. `temperature=0` is greedy."""

    max_new_tokens: int = 64  # longest response
    temperature: float = 1.0  # logits are divided by it
    top_p: float = 1.0  # keep the likeliest tokens up to this share; 1 = all
    top_k: int = 0  # keep this many of the likeliest tokens; 0 = all
    min_new_tokens: int = 0  # an end-of-sequence token is not drawn before
    stop: tuple[str, ...] = ()  # texts that end a response; they stay in it


@dataclass(kw_only=True)
class Experience:
    """What training needs of one rollout, whatever the modality; one row of a batch."""

    group: int
    replica: int
    seed: int
    mask: BoolArray  # [T]; True where the policy decided and the decision is trained
    logprobs: FloatArray  # [T]; of the behaviour policy, after the sampling transform
    weight_version: int  # of several, the oldest
    finish: FinishReason = "stop"
    reward: float | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)
    step_rewards: FloatArray | None = None  # [T]
    reference_logprobs: FloatArray | None = None  # [T]
    values: FloatArray | None = None  # [T]
    final_value: float = 0.0  # of what was seen after the last decision, if a time limit cut the row there
    baseline: float | None = None  # reward of the greedy response to the same prompt
    error: str | None = None  # why the reward could not be computed; such rows are dropped

    @property
    def length(self) -> int:
        """Number of trained decisions: the sum of the mask."""
        return int(self.mask.sum())


@dataclass(kw_only=True)
class Sample(Experience):
    """One response of a language model, as token ids; text is for rewards and people only."""

    prompt: Prompt
    response_ids: IntArray  # [T]
    text: str = ""
    weight_versions: IntArray | None = None  # [T]; of each token, where not all are of `weight_version`
    tool_calls: int | None = None  # None = there are no tools
    tool_errors: int = 0  # of these calls
    reply: str | None = None  # what came after the last answer of a tool; None = all of `text`
    returned: float | None = None  # what the program of an outside agent has returned
    others: dict[str, Sample] = field(default_factory=dict)  # what other policies said in the same episode


@dataclass(kw_only=True)
class Trajectory(Experience):
    """One episode of a simulator: D policy decisions (action chunks), T = k * D where the model gives k
    log-probabilities a decision (`Model.set_logprob_level`; else 1)."""

    observations: dict[str, NDArray[Any]]  # name -> [D, ...]
    actions: NDArray[Any]  # [D, C, A] float, or [D] int for discrete spaces
    executed: BoolArray | None = None  # [D, C]; None = every action; log-probabilities leave out the rest
    latents: NDArray[Any] | None = None  # [D, ...]; what the model drew to make its actions, if not they
    success: bool = False
    truncated: bool = False  # ended by a time limit, not by the task; a success ends the task
    final_observation: dict[str, NDArray[Any]] | None = None  # [...] what was seen last, if truncated


Chunk = list[Experience]
