"""Loads weights, processor and configuration of a model path, and writes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import ModelError
from rlinf_model_hf_vlm.processor import VisionProcessor

if TYPE_CHECKING:
    from torch import nn

    from rlinf_model_hf_vlm.config import HFVLMConfig

BESIDE_WEIGHTS = ("*token*", "vocab.*", "merges.txt", "*processor_config.json", "chat_template.*", "*.jinja")


def check(path: str) -> None:
    """Raises `ModelError` for a path that cannot be a model."""
    local = Path(path).expanduser()
    if local.is_dir() and (local / "config.json").is_file():
        return
    if local.exists():
        raise ModelError(f"model.path: {local} is no directory with a config.json, so no transformers model")
    if local.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        raise ModelError(
            f"model.path: {path} does not exist; give a directory written by save_pretrained, or a hub id "
            "such as 'owner/name'"
        )


def load_module(config: HFVLMConfig) -> nn.Module:
    """The model, weights loaded, in the config's dtype."""
    import torch
    from transformers import AutoModelForImageTextToText

    options: dict[str, Any] = {"dtype": getattr(torch, config.dtype)}
    if config.attn_implementation:
        options["attn_implementation"] = config.attn_implementation
    with no_progress_bars():
        module: nn.Module = _load(AutoModelForImageTextToText, config, "weights", options)
    return module


def load_processor(config: HFVLMConfig) -> VisionProcessor:
    """The processor with the model's end-of-sequence ids and context length."""
    from transformers import AutoConfig, AutoProcessor

    model_config = _load(AutoConfig, config, "configuration", {})
    if not hasattr(model_config, "vision_config"):
        raise ModelError(
            f"model.path: {config.path} is a {model_config.model_type}, which reads no images; use it with a "
            "model plugin for text, or choose one such as Qwen-VL, SmolVLM or PaliGemma"
        )
    made = _without_videos(config, model_config)
    processor = made or _load(AutoProcessor, config, "processor", {})
    return VisionProcessor(processor, model_config, config, _end_ids(config, processor, model_config))


def save(module: Any, processor: VisionProcessor, source: str, path: Path) -> None:
    """Write weights, configuration and processor; the processor's files are those of a local `source`."""
    from safetensors import SafetensorError

    try:
        with no_progress_bars():
            module.save_pretrained(path)
    except SafetensorError as err:  # how its writer tells of a full disk
        raise OSError(str(err)) from err
    folder = Path(source).expanduser()
    if not (source and folder.is_dir()):
        processor.processor.save_pretrained(path)
        return
    for pattern in BESIDE_WEIGHTS:
        for file in folder.glob(pattern):
            shutil.copy2(file, path / file.name)


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing over the run's own progress."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _without_videos(config: HFVLMConfig, model_config: Any) -> Any:
    """A processor of images alone where transformers' own needs packages for videos that are not there."""
    from transformers.utils.import_utils import is_torchvision_available

    from rlinf_model_hf_vlm import images_only

    if is_torchvision_available() or model_config.model_type not in images_only.KINDS:
        return None
    from transformers import AutoImageProcessor, AutoTokenizer

    image_processor = _load(AutoImageProcessor, config, "image processor", {})
    tokenizer = _load(AutoTokenizer, config, "tokenizer", {})
    return images_only.make(model_config, image_processor, tokenizer)


def _end_ids(config: HFVLMConfig, processor: Any, model_config: Any) -> set[int]:
    """Every end-of-sequence id that tokenizer, model or generation defaults name."""
    from transformers import GenerationConfig

    owners = [processor.tokenizer, model_config, model_config.get_text_config()]
    with suppress(OSError):  # a model need not have generation defaults
        owners.append(GenerationConfig.from_pretrained(_place(config)))
    found: set[int] = set()
    for owner in owners:
        ids = getattr(owner, "eos_token_id", None)
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    return found


def _place(config: HFVLMConfig) -> str:
    """The directory, or the hub id."""
    local = Path(config.path).expanduser()
    return str(local) if local.exists() else config.path


def _load(auto: Any, config: HFVLMConfig, what: str, options: dict[str, Any]) -> Any:
    try:
        return auto.from_pretrained(_place(config), trust_remote_code=config.trust_remote_code, **options)
    except Exception as err:  # transformers raises many types for one user error: an unusable path
        if "trust_remote_code" in str(err):
            raise ModelError(
                f"model.path: the {what} of {config.path} is Python code that comes with it, which is not "
                "run; read that code, then set model.trust_remote_code=true"
            ) from err
        cause = str(err).strip().splitlines() or [type(err).__name__]
        raise ModelError(
            f"model.path: cannot load the {what} of {config.path}: {cause[0]}. Check that it is a "
            "vision-language model of transformers with its processor's files beside it"
        ) from err
