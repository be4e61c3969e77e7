"""Finds what a model path means, and loads weights, tokenizer and configuration from it."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_core.errors import ModelError
from rlinf_model_hf_lm.processor import HFProcessor, end_ids

if TYPE_CHECKING:
    from torch import nn

    from rlinf_model_hf_lm.config import HFLMConfig

PACKAGE = "package:"


@dataclass(frozen=True)
class Source:
    """Arguments of transformers' `from_pretrained`: a name or directory, and a GGUF file in it."""

    name: str
    gguf: str = ""

    @property
    def options(self) -> dict[str, str]:
        return {"gguf_file": self.gguf} if self.gguf else {}

    def __str__(self) -> str:
        return str(Path(self.name) / self.gguf) if self.gguf else self.name


def find(path: str) -> Source:
    """What `path` names. Raises `ModelError` for files and directories that cannot be a model."""
    if path.startswith(PACKAGE):
        return _in_package(path.removeprefix(PACKAGE))
    local = Path(path).expanduser()
    if local.is_file():
        return _gguf(local)
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise ModelError(
                f"model.path: {local} is a directory without config.json, so it is no transformers model; "
                f"it holds: {_listing(local)}"
            )
        return Source(str(local))
    if local.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1 or path.endswith(".gguf"):
        raise ModelError(
            f"model.path: {path} does not exist; give a directory written by save_pretrained, a .gguf file, "
            f"a hub id such as 'owner/name', or '{PACKAGE}NAME'"
        )
    return Source(path)


def load_module(source: Source, config: HFLMConfig) -> nn.Module:
    """The causal language model, weights loaded, in the config's dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": getattr(torch, config.dtype), **source.options}
    if config.attn_implementation:
        options["attn_implementation"] = config.attn_implementation
    with no_progress_bars():
        module: nn.Module = _load(AutoModelForCausalLM, source, config, "weights", options)
    quantizer: Any = getattr(module, "hf_quantizer", None)
    if source.gguf and quantizer is not None:  # weights were dequantised; saving must not claim otherwise
        quantizer.remove_quantization_config(module)
    return module


def load_processor(source: Source, config: HFLMConfig) -> HFProcessor:
    """The tokenizer with the model's end-of-sequence ids and context length."""
    from transformers import AutoTokenizer

    options: dict[str, Any] = dict(source.options)
    model_config = load_configuration(source, config)
    tokenizer = _load(AutoTokenizer, source, config, "tokenizer", options)
    ends = end_ids(tokenizer, model_config, *_generation_config(source))
    return HFProcessor(tokenizer, model_config, config, ends)


def load_configuration(source: Source, config: HFLMConfig) -> Any:  # Any: a transformers configuration
    """The model's configuration."""
    from transformers import AutoConfig

    return _load(AutoConfig, source, config, "configuration", dict(source.options))


def save_configuration(model_config: Any, dtype: str, path: Path) -> None:  # Any: as above
    """Write it as other programs need it to build the model: with the name of its class, and with weights
    that are not quantised."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    plain = copy.deepcopy(model_config)
    plain.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[plain.model_type]]
    plain.dtype = dtype
    if hasattr(plain, "quantization_config"):
        del plain.quantization_config
    plain.save_pretrained(path)


def save_module(module: Any, path: Path) -> None:  # Any: transformers modules are not typed
    """Write weights and configuration. Raises `OSError`."""
    from safetensors import SafetensorError

    try:
        with no_progress_bars():
            module.save_pretrained(path)
    except SafetensorError as err:  # how its writer tells of a full disk
        raise OSError(str(err)) from err


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


def _load(auto: Any, source: Source, config: HFLMConfig, what: str, options: dict[str, Any]) -> Any:
    try:
        return auto.from_pretrained(source.name, trust_remote_code=config.trust_remote_code, **options)
    except Exception as err:  # transformers raises many types for one user error: an unusable path
        if "trust_remote_code" in str(err):
            raise ModelError(
                f"model.path: the {what} of {source} is Python code that comes with it, which is not run; "
                "read that code, then set model.trust_remote_code=true"
            ) from err
        cause = str(err).strip().splitlines() or [type(err).__name__]
        raise ModelError(
            f"model.path: cannot load the {what} of {source}: {cause[0]}. Check that it is a causal "
            "language model of transformers with its tokenizer files beside it"
            + ("" if Path(source.name).exists() else ", or that the hub can be reached and has this id")
        ) from err


def _generation_config(source: Source) -> list[Any]:
    """The model's generation defaults, where it has any: chat models name further EOS ids there."""
    from transformers import GenerationConfig

    try:
        return [] if source.gguf else [GenerationConfig.from_pretrained(source.name)]
    except OSError:
        return []


def _gguf(file: Path) -> Source:
    with file.open("rb") as opened:
        magic = opened.read(4)
    if magic != b"GGUF":
        raise ModelError(
            f"model.path: {file} is a file but no GGUF (its first bytes are {magic!r}); give the model's "
            "directory or a .gguf file"
        )
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"model.path: reading {file} needs the package 'gguf'; pip install gguf")
    return Source(str(file.parent), file.name)


def _in_package(package: str) -> Source:
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"model.path: no Python package {package!r} is installed (asked by '{PACKAGE}{package}'); "
            "install it, or give a directory"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(root.rglob("*.gguf"))
    if len(files) != 1:
        raise ModelError(
            f"model.path: package {package!r} ({root}) holds {len(files)} .gguf files, not one; "
            "give the file itself"
        )
    return _gguf(files[0])


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing"
