"""Options of the `pi0` model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rlinf_core.errors import ConfigError

FIVE = "tiny_pi05"  # the preset of pi0.5


@dataclass(frozen=True)
class Pi0Config:
    """Which checkpoint, what it sees, and how its flow is sampled."""

    path: str = ""  # directory of a checkpoint in the layout of transformers, LeRobot or OpenPI
    preset: Literal["", "tiny", "tiny_pi05"] = ""  # a small network with random weights, instead of `path`
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the parameters
    train: Literal["expert", "all"] = "expert"  # the action expert alone, or the vision-language model too
    chunk: int = 0  # actions executed of each decision; 0 = as many as the checkpoint predicts
    steps: int = 0  # denoising steps; 0 = as many as the checkpoint says
    noise: Literal["sde", "learned"] = "sde"  # of denoising steps: a schedule, or a head that is trained
    noise_level: float = 0.5  # sde: its scale
    noise_bounds: tuple[float, float] = (
        0.08,
        0.16,
    )  # learned: of a step's standard deviation
    noisy_steps: Literal["all", "one"] = "all"  # every step, or one that is drawn for each decision
    cameras: tuple[str, ...] = ()  # in this order; () = all that the simulator has, by name
    prompt: str = ""  # the instruction where the simulator gives none
    prompt_tokens: int = 0  # room for the prompt, padded; 0 = 48, or 200 in pi0.5, whose prompt has the state
    state_in_prompt: bool = True  # pi0.5: whether the prompt tells the state, which else is not seen
    tokenizer: str = ""  # directory of the tokenizer; "" = beside the weights
    statistics: str = ""  # file of state and action statistics; "" = beside the weights, if there is one
    normalization: Literal["auto", "mean_std", "quantiles"] = (
        "auto"  # which of the statistics are used; auto = mean_std, or quantiles in pi0.5
    )

    def __post_init__(self) -> None:
        if self.path and self.preset:
            raise ConfigError(
                f"model.path and model.preset (pi0) are both set ({self.path!r}, {self.preset!r}); keep one"
            )
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"model.{name} (pi0): {value!r}: use {' or '.join(map(repr, allowed))}")
        for name, least in (("chunk", 0), ("steps", 0), ("prompt_tokens", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"model.{name} (pi0): {getattr(self, name)}: must be {least} or more")
        if not 0.0 < self.noise_level <= 10.0:
            raise ConfigError(
                f"model.noise_level (pi0): {self.noise_level}: must lie above 0 (without noise there is no "
                "log-probability) and not above 10"
            )
        low, high = self.noise_bounds
        if not 0.0 < low < high:
            raise ConfigError(
                f"model.noise_bounds (pi0): {list(self.noise_bounds)}: two numbers above 0, the smaller first"
            )


_CHOICES: dict[str, tuple[Any, ...]] = {
    "preset": ("", "tiny", FIVE),
    "dtype": ("float32", "bfloat16"),
    "train": ("expert", "all"),
    "noise": ("sde", "learned"),
    "noisy_steps": ("all", "one"),
    "normalization": ("auto", "mean_std", "quantiles"),
}
