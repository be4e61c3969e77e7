"""What plugins return, looked at where a mistake would otherwise be told by somebody else's code.

Axes: N environments, B rows, T decision steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_core.api import Advantages, LossTerms, Observation, Transition
from rlinf_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from numpy.typing import NDArray

    from rlinf_core.api import Algorithm, Simulator


def expect_built(simulator: Simulator) -> None:
    """Raises `PluginError` for a simulator whose constructor has left something out."""
    for name in ("num_envs", "max_episode_steps", "action_space", "observation_space"):
        if not hasattr(simulator, name):
            todo = (
                "call super().__init__(config, num_envs, seed)" if name == "num_envs" else f"set self.{name}"
            )
            raise PluginError(f"simulator {_name(simulator)} has no {name}; {todo} in __init__")


def expect_observation(simulator: Simulator, shown: Any) -> None:  # Any: what a plugin returned
    """Raises `PluginError` for what is no observation."""
    _expect(isinstance(shown, Observation), simulator, "reset and restart return", shown, "an Observation")


def expect_shapes(simulator: Simulator, shown: Mapping[str, NDArray[Any]]) -> None:
    """Raises `PluginError` for arrays `[N, ...]` that are not as the observation space says."""
    for name, space in simulator.observation_space.items():
        if name in shown and shown[name].shape[1:] != space.shape:
            raise PluginError(
                f"simulator {_name(simulator)} shows {name!r} of shape {shown[name].shape[1:]} for each "
                f"environment; its observation_space says {space.shape}. `rlinf plugins check` tells more"
            )


def expect_transition(simulator: Simulator, outcome: Any) -> None:  # Any: what a plugin returned
    """Raises `PluginError` for what is no transition."""
    _expect(isinstance(outcome, Transition), simulator, "step returns", outcome, "a Transition")


def expect_advantages(algorithm: Algorithm, found: Any, mask_BT: torch.Tensor) -> None:  # Any: as above
    """Raises `PluginError` for advantages that are not one number a decision."""
    _expect(isinstance(found, Advantages), algorithm, "advantages returns", found, "Advantages")
    if found.advantages_BT.shape != mask_BT.shape:
        raise PluginError(
            f"algorithm {_name(algorithm)}: advantages_BT has shape {tuple(found.advantages_BT.shape)}; it "
            f"must have that of mask_BT, {tuple(mask_BT.shape)}; advantages_B[:, None] * batch.mask_BT gives "
            "every decision of a row the same"
        )


def expect_loss(algorithm: Algorithm, found: Any) -> None:  # Any: as above
    """Raises `PluginError` for what is no loss with metrics."""
    _expect(isinstance(found, LossTerms), algorithm, "loss returns", found, "LossTerms(total, metrics)")


def _expect(holds: bool, plugin: object, does: str, found: object, wanted: str) -> None:
    if not holds:
        raise PluginError(f"{_name(plugin)}: {does} {type(found).__name__}; it has to be {wanted}")


def _name(plugin: object) -> str:
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"
