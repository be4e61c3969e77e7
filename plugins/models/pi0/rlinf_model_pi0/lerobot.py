"""An exported policy as LeRobot's `PreTrainedPolicy.from_pretrained` takes it.

Beside weights under LeRobot's names: `config.json` with the features of the simulator, and the two processors
that stand before and behind the policy, which hold the statistics. Any: JSON values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlinf_core.errors import ModelError
from rlinf_model_pi0 import layout
from rlinf_model_pi0.statistics import Affine

FORMAT = "lerobot"
_WEIGHTS, _RECORD = "model.safetensors", "config.json"
_TOKENIZER = "google/paligemma-3b-pt-224"  # which all published checkpoints name
_NORMALISED = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
_STATE, _ACTION = "observation.state", "action"
_EPS = 1e-8  # that LeRobot adds to deviations
_WIDTHS = {(2048, 16384): "gemma_2b", (1024, 4096): "gemma_300m"}  # the sizes that LeRobot can build
_DEPTH = 18


@dataclass(frozen=True)
class Facts:
    """Of a policy and its simulator. The two affines lead to the network's units."""

    five: bool
    dtype: str
    cameras: dict[str, tuple[int, int]]  # name -> height and width of its pictures
    state: int  # numbers
    actions: int
    executed: int  # actions of a chunk
    prompt_tokens: int
    of_state: Affine | None
    of_actions: Affine


def refuse(architecture: Any, facts: Facts, *, state_in_prompt: bool) -> None:  # Any: of transformers
    """Raises `ModelError` for a policy that LeRobot cannot build or ask."""
    if _variants(architecture) is None:
        text = architecture.vlm_config.text_config
        raise ModelError(
            f"--format {FORMAT}: LeRobot builds language models and experts of the sizes "
            f"{' and '.join(_WIDTHS.values())}; this one has {text.num_hidden_layers} layers of width "
            f"{text.hidden_size}. Export it in the model's own format, without --format"
        )
    if not facts.state:
        raise ModelError(f"--format {FORMAT}: LeRobot's policies are told a state, the simulator has none")
    if facts.five and not state_in_prompt:
        raise ModelError(
            f"--format {FORMAT}: LeRobot tells pi0.5 the state in its prompt, and this policy was trained "
            "with model.state_in_prompt=false"
        )


def convert(folder: Path, architecture: Any, facts: Facts) -> None:  # Any: of transformers
    """Turn an export into LeRobot's layout, in its place."""
    weights = folder / _WEIGHTS
    if not layout.is_lerobot(layout.weight_names(folder)):
        renamed = {layout.LEROBOT + name: tensor for name, tensor in load_file(weights).items()}
        save_file(renamed, weights, metadata={"format": "pt"})
    for stale in folder.glob("policy_*processor*"):
        stale.unlink()
    known = json.loads((folder / _RECORD).read_text())
    kept = known if known.get("type") in ("pi0", "pi05") else {}  # such as what it was trained with
    _write(folder / _RECORD, {**kept, **_record(architecture, facts)})
    before, behind = _processors(facts)
    statistics = _statistics(facts)
    for name, steps in (("policy_preprocessor", before), ("policy_postprocessor", behind)):
        for number, step in enumerate(steps):
            if step["registry_name"].endswith("normalizer_processor"):
                step["state_file"] = f"{name}_step_{number}_{step['registry_name']}.safetensors"
                save_file(statistics, folder / step["state_file"])
        _write(folder / f"{name}.json", {"name": name, "steps": steps})


def _record(architecture: Any, facts: Facts) -> dict[str, Any]:  # Any: of transformers
    size = architecture.vlm_config.vision_config.image_size
    language, expert = _variants(architecture) or ("", "")
    return {
        "type": "pi05" if facts.five else "pi0",
        "input_features": _input_features(facts),
        "output_features": _output_features(facts),
        "device": "cpu",
        "push_to_hub": False,
        "paligemma_variant": language,
        "action_expert_variant": expert,
        "dtype": facts.dtype,
        "chunk_size": architecture.chunk_size,
        "n_action_steps": facts.executed,
        "max_state_dim": architecture.max_state_dim,
        "max_action_dim": architecture.max_action_dim,
        "num_inference_steps": architecture.num_inference_steps,
        "image_resolution": [size, size],
        "normalization_mapping": _NORMALISED,
        "tokenizer_max_length": facts.prompt_tokens,
    }


def _processors(facts: Facts) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The steps of LeRobot's pipelines, in the order of each policy."""
    features = {**_input_features(facts), **_output_features(facts)}
    tokens = _step(
        "tokenizer_processor",
        max_length=facts.prompt_tokens,
        task_key="task",
        padding_side="right",
        padding="max_length",
        truncation=True,
        tokenizer_name=_TOKENIZER,
    )
    device = _step("device_processor", device="cpu", float_dtype=None)
    normalise = _step("normalizer_processor", eps=_EPS, features=features, norm_map=_NORMALISED)
    first = [_step("rename_observations_processor", rename_map={}), _step("to_batch_processor")]
    if facts.five:  # whose prompt tells the state in the network's units
        own = [normalise, _step("pi05_prepare_state_tokenizer_processor_step"), tokens, device]
    else:
        own = [_step("pi0_new_line_processor"), tokens, device, normalise]
    back = _step("unnormalizer_processor", eps=_EPS, features=_output_features(facts), norm_map=_NORMALISED)
    return [*first, *own], [back, dict(device)]


def _step(name: str, **config: Any) -> dict[str, Any]:
    return {"registry_name": name, "config": config}


def _input_features(facts: Facts) -> dict[str, Any]:
    pictures = {
        f"observation.images.{name}": {"type": "VISUAL", "shape": [3, height, width]}
        for name, (height, width) in facts.cameras.items()
    }
    return {**pictures, _STATE: {"type": "STATE", "shape": [facts.state]}}


def _output_features(facts: Facts) -> dict[str, Any]:
    return {_ACTION: {"type": "ACTION", "shape": [facts.actions]}}


def _statistics(facts: Facts) -> dict[str, Tensor]:
    """Offsets and scales as means and deviations, whatever they were made of."""
    found = {}
    for key, affine, size in (
        (_STATE, facts.of_state, facts.state),
        (_ACTION, facts.of_actions, facts.actions),
    ):
        offset, scale = (
            (torch.tensor(0.0), torch.tensor(1.0)) if affine is None else (affine.offset, affine.scale)
        )
        found[f"{key}.mean"] = offset.float().expand(size).contiguous()
        found[f"{key}.std"] = scale.float().expand(size).contiguous()
    return found


def _variants(architecture: Any) -> tuple[str, str] | None:  # Any: of transformers
    """LeRobot's names for the sizes of the language model and the expert; None where it has none."""
    parts = (architecture.vlm_config.text_config, architecture.dit_config)
    names = [_WIDTHS.get((part.hidden_size, part.intermediate_size)) for part in parts]
    if any(part.num_hidden_layers != _DEPTH for part in parts) or names[0] is None or names[1] is None:
        return None
    return names[0], names[1]


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=4) + "\n")
