"""The network and its files, as transformers has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlinf_core.errors import ModelError
from rlinf_model_pi0.config import Pi0Config
from rlinf_model_pi0.heads import is_head
from rlinf_model_pi0.prompts import VOCABULARY


def architecture(config: Pi0Config) -> Any:  # Any: a transformers configuration
    """Of the checkpoint or the preset. Raises `ModelError` where there is none."""
    from transformers import PI0Config

    if config.preset:
        return _tiny()
    if not (Path(config.path) / "config.json").is_file():
        raise ModelError(
            f"model.path (pi0): {config.path!r} is no directory with a config.json; name a pi0 checkpoint "
            "in the transformers layout, or set model.preset=tiny"
        )
    found = PI0Config.from_pretrained(config.path, local_files_only=True)
    if found.model_type != "pi0":
        raise ModelError(f"model.path (pi0): {config.path} holds a {found.model_type!r} model, not pi0")
    return found


def network(config: Pi0Config, seed: int) -> Any:  # Any: a transformers module
    """The checkpoint's weights, or the preset's drawn from `seed` alone. Raises `ModelError`."""
    from transformers import PI0ForConditionalGeneration

    kind = getattr(torch, config.dtype)
    loader: Any = PI0ForConditionalGeneration  # Any: not typed as returning two things
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        if config.preset:
            return loader(architecture(config)).to(kind)
        try:
            module, report = loader.from_pretrained(
                config.path, dtype=kind, local_files_only=True, output_loading_info=True
            )
        except OSError as err:
            raise ModelError(f"model.path (pi0): cannot load {config.path}: {err}") from err
    lost = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if lost:
        raise ModelError(
            f"model.path (pi0): {config.path} has no fitting weight {lost[0]} ({len(lost)} are missing)"
        )
    return module


def save(config: Pi0Config, state: Iterator[tuple[str, Tensor]], path: Path) -> None:
    """Write what `from_pretrained` loads, without the heads. Raises `ModelError`."""
    module = network(config, 0)
    tensors = {name: tensor.detach().cpu() for name, tensor in state if not is_head(name)}
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    if missing or unexpected:
        raise ModelError(
            f"pi0: exported weights do not fit the model: unexpected {sorted(unexpected)[:4]}, missing "
            f"{sorted(missing)[:4]}"
        )
    path.mkdir(parents=True, exist_ok=True)
    with _quiet():
        module.save_pretrained(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars, which would be drawn over the run's own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


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
