"""Everything that the adapter, or the double of its tests, asks of SGLang is in SGLang's own source, for both
releases. The packages come from the index, without what they need; nothing of them is imported."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest
import rlinf_backend_sglang
import torch
from rlinf_backend_sglang import arguments as arguments_module
from rlinf_backend_sglang.arguments import LOADER, arguments
from rlinf_backend_sglang.config import SGLangConfig
from rlinf_backend_sglang.engine import VARIABLES
from rlinf_backend_sglang.release import ADAPTERS
from rlinf_backend_sglang.sampling import parts

from rlinf_core.api import LoRAConfig
from rlinf_core.isolated_rollout.engine import Job, Setup
from rlinf_core.types import Sampling

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
PACKAGE = Path(rlinf_backend_sglang.__file__).parent
ENGINE = "entrypoints/engine.py"
MANAGER = "managers/tokenizer_manager.py"
READ = tuple(
    f"sglang/srt/{name}"
    for name in (
        *("entrypoints/engine.py", "server_args.py", "environ.py", "arg_groups/fields/", "managers/"),
        *("sampling/", "utils/common.py", "models/qwen2.py", "models/llama.py"),
        *("model_executor/model_runner.py", "model_executor/model_runner_components/"),
    )
)


def _loaded(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


source = _loaded(HERE / "sglang_source.py", "sglang_source")


@pytest.fixture(scope="module", params=list(ADAPTERS))
def release(request: pytest.FixtureRequest) -> str:
    named: str = request.param
    return named


@pytest.fixture(scope="module")
def srt(release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SGLang's runtime, as its distribution has it."""
    folder = tmp_path_factory.mktemp("sglang")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    fetch = [*pip, "--only-binary", ":all:", "--dest", str(folder), f"sglang=={release}"]
    done = subprocess.run(fetch, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("sglang-*.whl")
    with ZipFile(wheel) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if name.startswith(READ)])
    return folder / "sglang" / "srt"


def _asked(setup_folder: Path, patch: pytest.MonkeyPatch, device: str) -> dict[str, Any]:
    (setup_folder / "config.json").write_text(
        json.dumps({"dtype": "bfloat16", "num_attention_heads": 4, "num_hidden_layers": 2})
    )
    patch.setattr(arguments_module, "device_memory", lambda device: (60 * 2**30, 80 * 2**30))
    setup = Setup(str(setup_folder), (2,), 0, 256, device, lora=LoRAConfig(rank=8))
    return arguments(SGLangConfig(), setup)


def _engine_calls(release: str) -> Iterator[tuple[str, int, frozenset[str]]]:
    module = ADAPTERS[release].rpartition(".")[2]
    for name in ("engine", "updates", module):
        yield from source.calls(PACKAGE / f"{name}.py", "engine")


def test_the_engine_has_the_methods_that_are_called_with_their_keywords(srt: Path, release: str) -> None:
    found = list(_engine_calls(release))
    named = {name for name, _, _ in found}
    assert {"async_generate", "update_weights_from_tensor", "flush_cache", "load_lora_adapter"} <= named
    assert ("begin_weight_update" in named) == (release == "0.5.23")
    for name, by_position, words in found:
        known = source.taken(source.function(srt / ENGINE, name, "Engine"))
        assert words <= set(known.names), f"{name} has no {words - set(known.names)}"
        assert known.required <= words | set(known.names[:by_position]), f"{name} needs more"


def test_requests_are_ended_by_the_tokenizer_manager_and_its_names_are_prefixes(srt: Path) -> None:
    ((name, by_position, words),) = source.calls(PACKAGE / "engine.py", "tokenizer_manager")
    known = source.taken(source.function(srt / MANAGER, name, "TokenizerManager"))
    assert (by_position, words) == (0, {"rid"})
    assert words <= set(known.names)
    ending = ast.unparse(source.function(srt / "managers/scheduler.py", "abort_request", "Scheduler"))
    assert "startswith(recv_req.rid)" in ending  # so no name may begin with another


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_the_engine_takes_all_arguments(
    srt: Path, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = source.class_fields(srt / "server_args.py")
    for path in (srt / "arg_groups").glob("fields/*.py"):
        known |= source.class_fields(path)
    asked = _asked(tmp_path, monkeypatch, device)
    assert "enable_lora" in asked
    assert asked.keys() - known == set()


def test_sampling_parameters_have_the_keys_that_are_given(srt: Path) -> None:
    path = srt / "sampling/sampling_params.py"
    try:
        known = set(source.taken(source.function(path, "__init__", "SamplingParams")).names)
    except LookupError:
        known = source.class_fields(path)
    job = Job(1, [1, 2], 7, most=8, least=3)
    for part in parts(job, Sampling(), [2], stream=True, seeded=True):
        assert part.keys() - known == set()


def test_minimal_lengths_still_need_a_tokenizer(srt: Path) -> None:
    """Why the adapter draws them as a part of their own."""
    text = (srt / "sampling/penaltylib/min_new_tokens.py").read_text()
    assert "req.tokenizer.additional_stop_token_ids" in text


def test_seeds_are_used_with_deterministic_inference_alone(srt: Path) -> None:
    text = (srt / "sampling/sampling_batch_info.py").read_text()
    assert "r.sampling_params.sampling_seed" in text
    assert "if enable_deterministic" in text


def test_outputs_have_the_keys_that_are_read(srt: Path) -> None:
    text = (srt / MANAGER).read_text()
    for key in ("output_ids", "meta_info", "finish_reason", "output_token_logprobs"):
        assert f'"{key}"' in text
    usage = srt / "managers/scheduler_components/memory_usage.py"
    text = (usage if usage.exists() else srt / "managers/scheduler.py").read_text()
    for key in ("weight", "kvcache", "graph"):
        assert f'"{key}"' in text
    text = (srt / ENGINE).read_text()
    assert '"internal_states"' in text


def test_answers_have_the_fields_that_are_read(srt: Path) -> None:
    known = {
        node.name: {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        for node in ast.parse((srt / "managers/io_struct.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    assert "success" in known["FlushCacheReqOutput"]
    assert {"success", "error_message"} <= known["LoRAUpdateOutput"]


def test_the_variables_that_are_set_are_read(srt: Path) -> None:
    text = (srt / "environ.py").read_text()
    for name in VARIABLES:
        assert f"{name} = Env" in text


def test_a_loader_of_ours_is_called_with_the_model_and_the_tensors(srt: Path) -> None:
    updater = srt / "model_executor/model_runner_components/weight_updater.py"
    text = (updater if updater.exists() else srt / "model_executor/model_runner.py").read_text()
    assert "custom_loader = dynamic_import(load_format)" in text
    assert "named_tensors)" in text.partition("custom_loader(")[2].partition("\n")[0]
    importer = source.function(srt / "utils/common.py", "dynamic_import")
    space: dict[str, Any] = {"importlib": importlib}
    exec(compile(ast.Module([importer], []), "common.py", "exec"), space)
    assert space["dynamic_import"](LOADER).__module__ == "rlinf_backend_sglang.loader"


def test_what_an_update_says_passes_the_unpickler_of_sglang(srt: Path) -> None:
    tree = ast.parse((srt / "utils/common.py").read_text())
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "SafeUnpickler"]
    assert len(found) == 1
    space: dict[str, Any] = {"pickle": pickle, "Any": Any}
    exec(
        compile(
            ast.Module([ast.parse("from __future__ import annotations").body[0], *found], []),
            "common.py",
            "exec",
        ),
        space,
    )
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump([(json.dumps({"report": "/tmp"}), torch.empty(0))])
    buffer.seek(0)
    ((name, tensor),) = space["SafeUnpickler"](buffer).load()
    assert json.loads(name) == {"report": "/tmp"}
    assert tensor.numel() == 0


def test_fused_layers_are_those_of_its_qwen2_and_llama(srt: Path) -> None:
    for name in ("qwen2", "llama"):
        text = (srt / f"models/{name}.py").read_text().replace(".q_proj", "q_proj").replace('".', '"')
        for whole, part in (("qkv_proj", "q_proj"), ("qkv_proj", "v_proj"), ("gate_up_proj", "up_proj")):
            assert f'("{whole}", "{part}"' in text


def test_the_double_takes_nothing_that_the_engine_does_not(srt: Path, release: str) -> None:
    double = HERE / "double/sglang.py"
    tree = ast.parse(double.read_text())
    (engine,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Engine"]
    without = set() if release == "0.5.23" else {"begin_weight_update", "end_weight_update"}
    for node in engine.body:
        if not isinstance(node, source.Function) or node.name in without or node.name.startswith("_"):
            continue
        real = source.taken(source.function(srt / ENGINE, node.name, "Engine"))
        assert set(source.taken(node).names) <= set(real.names), node.name
