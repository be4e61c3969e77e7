"""What a run cannot go on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinf_core.errors import CheckpointError

if TYPE_CHECKING:
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.run.checkpoint import Checkpoint


FOREIGN = (LookupError, TypeError, ValueError, AttributeError)  # what a state of another make leads to


def refuse_other_backend(checkpoint: Checkpoint, config: RunConfig) -> None:
    """Raises `CheckpointError` for a checkpoint of another backend than the run's."""
    before, now = checkpoint.state["backend"], config.backend.name
    if before != now:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} was written by backend {before!r}, and each reads its own; this "
            f"run names {now!r}. Go on with {before!r}, or start a new run from the policy: "
            f"rlinf export {config.output} --output DIR, then model.path=DIR"
        )


def refuse_changes_of_data(changes: str, config: RunConfig) -> None:
    """Raises `CheckpointError` that shows them, if there are any."""
    if changes:
        raise CheckpointError(
            f"--resume {config.output}: the data differs from the run's:\n{changes}\n"
            "restore it, or pass --allow-changes to continue with the new one"
        )


def lacks(checkpoint: Checkpoint, err: Exception) -> CheckpointError:
    """The error for a state without what a resumed run needs."""
    what = f"lacks {err}" if isinstance(err, KeyError) else f"holds something else ({err})"
    return CheckpointError(f"checkpoint {checkpoint.path} {what} in state.json; resume from another one")
