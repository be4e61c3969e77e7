"""What runs in SGLang's own processes: it installs weights from shared memory, and tells what is installed.

SGLang imports `receive` by the name that it is given, and calls it with its model and what
`update_weights_from_tensor` was given. That is one pair here: what to do, as JSON in place of a name, and a
tensor without elements. The weights themselves do not pass through SGLang.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.isolated_rollout.buckets import Bucket, digest
from rlinf_core.isolated_rollout.layers import installed, placed, wrapped_layers
from rlinf_core.isolated_rollout.names import is_adapter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
REPORT = "digests-*.json"


def receive(model: Any, named_tensors: Sequence[tuple[str, Tensor]]) -> None:  # Any: a model of SGLang
    """Do what is asked."""
    for name, _ in named_tensors:
        asked = json.loads(name)
        if "bucket" in asked:
            _load(model, Bucket.from_plain(asked["bucket"]))
        else:
            _report(model, Path(asked["report"]))


def _load(model: Any, bucket: Bucket) -> None:  # Any: a model of SGLang
    """By the model's own loading."""
    wrapped = wrapped_layers(model)
    sent = {name: tensor for name, tensor in bucket.tensors().items() if not is_adapter(name)}
    if sent:
        model.load_weights([(placed(name, wrapped, FUSED), tensor) for name, tensor in sent.items()])


def _report(model: Any, folder: Path) -> None:  # Any: a model of SGLang
    """Digests of this process's weights, in a file that is whole when it is there."""
    found = [[names, digest([tensor])] for names, tensor in installed(model, FUSED)]
    draft = folder / f"draft-{os.getpid()}"
    draft.write_text(json.dumps(found))
    draft.rename(folder / REPORT.replace("*", str(os.getpid())))
