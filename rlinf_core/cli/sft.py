"""`rlinf sft`: supervised fine-tuning, by the machinery of `rlinf train`."""

from __future__ import annotations

from dataclasses import replace

from rlinf_core.cli.options import with_options
from rlinf_core.cli.train import AllowChanges, Resume, train
from rlinf_core.config.options import Options

ALGORITHM = "sft"
ALONE = ("warm_start.steps=0",)  # imitation is the run itself


@with_options
def command(
    options: Options,
    resume: Resume = None,
    allow_changes: AllowChanges = False,
) -> None:
    """Train a policy on demonstrations: those of the data, or recorded episodes of a simulator.

    As rlinf train --algo sft, without a warm start.
    """
    if resume is None:
        options = replace(options, algo=options.algo or ALGORITHM, overrides=(*ALONE, *options.overrides))
    train(options, resume, allow_changes=allow_changes)
