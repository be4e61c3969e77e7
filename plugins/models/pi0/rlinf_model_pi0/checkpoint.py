"""The network and its files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlinf_core.errors import ModelError
from rlinf_model_pi0 import layout
from rlinf_model_pi0.config import FIVE, Pi0Config
from rlinf_model_pi0.heads import is_head
from rlinf_model_pi0.prompts import VOCABULARY
from rlinf_model_pi0.statistics import ASSETS

_WEIGHTS = "model.safetensors"
_UNREAD = "model.dit.embed_tokens.weight"  # a part of the layout that nothing reads


def architecture(config: Pi0Config) -> Any:  # Any: a transformers configuration
    """Of the checkpoint or the preset. Raises `ModelError` where there is none."""
    from transformers import PI0Config

    if config.preset:
        return _tiny()
    folder = Path(config.path)
    record = layout.transformers_record(layout.read_record(folder), str(folder))
    return PI0Config.from_dict(record)


def is_five(config: Pi0Config) -> bool:
    """Whether it is pi0.5: the weights tell."""
    if config.preset:
        return config.preset == FIVE
    return layout.is_five(layout.weight_names(Path(config.path)))


def network(config: Pi0Config, seed: int) -> Any:  # Any: a transformers module
    """The checkpoint's weights, or the preset's drawn from `seed` alone. Raises `ModelError`."""
    kind, shape = getattr(torch, config.dtype), architecture(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if config.preset:
            return _drawn(_class(config), shape).to(kind)
    return _loaded(config, shape, kind)


def save(config: Pi0Config, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
    """Weights without the heads, by their published names; beside them what lies beside those that the run
    started from. Raises `ModelError`."""
    with torch.device("meta"):
        wanted = _class(config)(architecture(config)).state_dict().keys()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state if not is_head(name)}
    different = sorted(wanted ^ tensors.keys())
    if different:
        raise ModelError(
            f"pi0: exported weights do not fit the model: {different[0]} is "
            f"{'missing' if different[0] in wanted else 'unexpected'} ({len(different)} in all)"
        )
    path.mkdir(parents=True, exist_ok=True)
    before = ""
    if config.path:
        _copy_others(Path(config.path), path)
        before = layout.LEROBOT if layout.is_lerobot(layout.weight_names(Path(config.path))) else ""
    else:
        architecture(config).save_pretrained(path)
    named = {before + layout.published(name): tensor for name, tensor in tensors.items()}
    save_file(named, path / _WEIGHTS, metadata={"format": "pt"})


def _class(config: Pi0Config) -> Any:  # Any: transformers classes are not typed
    if is_five(config):
        from rlinf_model_pi0.five import Pi05Network

        return Pi05Network
    from transformers import PI0ForConditionalGeneration

    return PI0ForConditionalGeneration


def _drawn(loader: Any, shape: Any) -> Any:  # Any: transformers classes are not typed
    module = loader(shape)
    if hasattr(module, "time_mlp_in"):
        from rlinf_model_pi0.five import open_gates

        open_gates(module)
    return module


def _loaded(config: Pi0Config, shape: Any, kind: torch.dtype) -> Any:  # Any: of transformers
    """Buffers, which no file holds, are as they are made; the weights are put in the place of empty ones."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        module = _class(config)(shape)
    found = layout.read_weights(Path(config.path), kind)
    own = module.state_dict()
    if _UNREAD not in found:
        found[_UNREAD] = torch.zeros(own[_UNREAD].shape, dtype=kind)
    sizes = [{name: tuple(tensor.shape) for name, tensor in each.items()} for each in (own, found)]
    different = sorted(name for name in own.keys() | found.keys() if sizes[0].get(name) != sizes[1].get(name))
    if different:
        name = different[0]
        raise ModelError(
            f"model.path (pi0): {len(different)} weights in {config.path} do not fit; {name} is "
            f"{sizes[1].get(name, 'missing')}, asked for is {sizes[0].get(name, 'nothing')}"
        )
    module.load_state_dict(found, assign=True)
    return module.eval()


def _copy_others(source: Path, path: Path) -> None:
    for item in source.iterdir():
        stale = item.name.startswith("model") and item.name.endswith((".safetensors", ".index.json"))
        if item.is_dir() and item.name == ASSETS:
            shutil.copytree(item, path / item.name, dirs_exist_ok=True)
        elif item.is_file() and not stale:
            shutil.copyfile(item, path / item.name)


def _tiny() -> Any:  # Any: a transformers configuration
    """The architecture of pi0, small: 16 tokens a picture of 56 x 56 pixels, 8 actions, 4 denoising steps."""
    from transformers import PI0Config

    attention = {"num_hidden_layers": 2, "num_attention_heads": 4}
    gemma = {**attention, "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 32}
    return PI0Config(
        vlm_config={
            "model_type": "paligemma",
            "text_config": {**gemma, "hidden_size": 128, "intermediate_size": 256, "vocab_size": VOCABULARY},
            "vision_config": {
                **attention,
                "model_type": "siglip_vision_model",
                "hidden_size": 128,
                "intermediate_size": 256,
                "image_size": 56,
                "patch_size": 14,
                "vision_use_head": False,
            },
            "projection_dim": 128,
            "image_token_id": VOCABULARY,
        },
        dit_config={**gemma, "hidden_size": 96, "intermediate_size": 256},
        chunk_size=8,
        num_inference_steps=4,
    )
