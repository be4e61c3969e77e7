"""What is refused before SGLang is asked, and what it is asked for. Needs no SGLang."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from rlinf_backend_sglang import arguments as arguments_module
from rlinf_backend_sglang import release
from rlinf_backend_sglang.arguments import arguments
from rlinf_backend_sglang.config import SGLangConfig
from rlinf_backend_sglang.sampling import parts

from rlinf_core.api import LoRAConfig
from rlinf_core.config.check_isolation import require_packages
from rlinf_core.config.compose import Options, compose
from rlinf_core.errors import ConfigError, PluginError
from rlinf_core.isolated_rollout.engine import Job, Setup
from rlinf_core.plugins import plugins
from rlinf_core.types import Sampling

GIB = 2**30


def setup(
    folder: Path, device: str = "cpu", lora: LoRAConfig | None = None, dtype: str = "bfloat16"
) -> Setup:
    model = {"dtype": dtype, "num_attention_heads": 4, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(model))
    return Setup(str(folder), (2,), 0, 256, device, seed=2**31 + 5, lora=lora or LoRAConfig())


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of 80 GiB, of which 50 are free."""
    monkeypatch.setattr(arguments_module, "device_memory", lambda device: (50 * GIB, 80 * GIB))


@pytest.mark.usefixtures("memory")
def test_our_fraction_of_the_device_is_given_as_sglangs_fraction_of_what_is_free(tmp_path: Path) -> None:
    asked = arguments(SGLangConfig(memory_fraction=0.5), setup(tmp_path, "cuda:3"))
    assert asked["mem_fraction_static"] == 0.8  # 40 of 50 GiB
    assert asked["base_gpu_id"] == 3
    assert asked["enable_memory_saver"] is asked["enable_weights_cpu_backup"] is True
    with pytest.raises(
        ConfigError,
        match=r"rollout.memory_fraction \(sglang\): the engine would take 56.0 GiB of 80.0, but 50.0 are "
        r"free .* choose 0.56 or less",
    ):
        arguments(SGLangConfig(memory_fraction=0.7), setup(tmp_path, "cuda:3"))


@pytest.mark.usefixtures("memory")
def test_what_sglang_is_asked_for(tmp_path: Path) -> None:
    asked = arguments(SGLangConfig(max_length=100, max_running=8), setup(tmp_path, lora=LoRAConfig(rank=20)))
    assert asked["dtype"] == "bfloat16"
    assert asked["context_length"] == 108  # SGLang draws up to two tokens less than its context
    assert asked["max_running_requests"] == 8
    assert asked["random_seed"] == 5  # SGLang's seeds are of 32 bits
    assert asked["enable_deterministic_inference"]
    assert (asked["enable_lora"], asked["max_lora_rank"]) == (True, 20)
    assert "down_proj" in asked["lora_target_modules"]
    assert "enable_lora" not in arguments(SGLangConfig(), setup(tmp_path))
    named = arguments(SGLangConfig(), setup(tmp_path, lora=LoRAConfig(rank=4, target_modules=("q_proj",))))
    assert named["lora_target_modules"] == ["q_proj"]


@pytest.mark.usefixtures("memory")
def test_a_float32_model_is_bfloat16_on_a_gpu_unless_asked_for(tmp_path: Path) -> None:
    for device, asked, dtype in (
        ("cpu", "auto", "float32"),
        ("cuda:0", "auto", "bfloat16"),
        ("cuda:0", "float32", "float32"),
    ):
        config = SGLangConfig(dtype=asked)  # type: ignore[arg-type]
        assert arguments(config, setup(tmp_path, device, dtype="float32"))["dtype"] == dtype


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel_size": 3}, "3 does not divide the model's 4 heads"),
        ({"pipeline_parallel_size": 4}, "4 stages for a model of 2 layers"),
        ({"max_length": 300}, "300 is beyond the model's context of 256"),
    ],
)
def test_sizes_that_do_not_fit_the_model_are_refused(
    settings: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        arguments(SGLangConfig(**settings), setup(tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_running": 0}, r"rollout.max_running \(sglang\): 0 is less than 1"),
        ({"max_length": -1}, r"rollout.max_length \(sglang\): -1 is less than 0"),
        ({"memory_fraction": 0.0}, r"rollout.memory_fraction \(sglang\): 0.0 is not above 0 and at most 1"),
        ({"dtype": "int8"}, "'int8' is not one of auto, float32"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SGLangConfig(**settings)


def test_a_minimal_length_is_a_part_that_cannot_end() -> None:
    job = Job(1, [5, 6], 77, most=10, least=4)
    first, rest = parts(job, Sampling(temperature=0.7), [2, 3], stream=False, seeded=True)
    assert first["logit_bias"] == {"2": -float("inf"), "3": -float("inf")}
    assert (first["max_new_tokens"], first["ignore_eos"]) == (4, True)
    assert (rest["max_new_tokens"], rest["ignore_eos"], rest["stop_token_ids"]) == (6, False, [2, 3])
    assert first["sampling_seed"] == rest["sampling_seed"] == 77
    assert {part["temperature"] for part in (first, rest)} == {0.7}
    (whole,) = parts(Job(1, [5], 77, most=4, least=9), Sampling(), [2], stream=True, seeded=False)
    assert (whole["max_new_tokens"], whole["ignore_eos"], whole["stream_interval"]) == (4, True, 1)
    assert "sampling_seed" not in whole


def test_releases_that_were_not_looked_at_are_refused_with_the_line_that_installs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = ["0.4.10.post2"]
    monkeypatch.setattr(metadata, "version", lambda name: there[0])
    with pytest.raises(
        PluginError,
        match=r"SGLang 0.4.10.post2 is installed .* are 0.5.10 and 0.5.23: .*install sglang --iso",
    ):
        release.adapter()
    for there[0], module in (("0.5.10.post1", "release_0_5_10"), ("0.5.23", "release_0_5_23")):
        assert release.adapter().__name__ == f"rlinf_backend_sglang.{module}"  # type: ignore[attr-defined]


def test_without_sglang_the_line_that_builds_its_environment_is_told() -> None:
    with pytest.raises(
        PluginError, match="SGLang is not installed in this environment; build its environment"
    ):
        release.installed()


def test_a_run_without_sglang_is_refused_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLINF_ENVIRONMENTS", str(tmp_path / "none"))
    config = compose(Options(overrides=("rollout=sglang",)), plugins())
    with pytest.raises(PluginError, match=r"'sglang' would run in .* lacks sglang; .*install sglang --iso"):
        require_packages(config, plugins())


def test_the_lock_is_of_a_release_that_is_supported() -> None:
    lock = Path(release.__file__).parent / "lock.txt"
    (line,) = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    assert line.removeprefix("sglang==") in release.ADAPTERS


def test_the_engine_offers_adapters_and_interruption_and_no_cut_distributions() -> None:
    spec = plugins().get("rollouts", "sglang")
    assert spec.isolation is not None
    assert (spec.provides.lora, spec.provides.abort, spec.provides.stop_texts) == (True, True, True)
    assert (spec.provides.top_p, spec.provides.top_k) == (False, False)


def test_what_runs_beside_sglang_imports_little() -> None:
    program = "\n".join(
        (
            "import sys, rlinf_core.isolated_rollout.serve",
            "import rlinf_backend_sglang.engine, rlinf_backend_sglang.loader",
            "found = {name.partition('.')[0] for name in sys.modules}",
            "print(*(found & {'torch', 'omegaconf', 'pluggy'}))",
        )
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_page_has_every_setting() -> None:
    page = (Path(__file__).parents[4] / "docs/rollout-sglang.md").read_text()
    for item in fields(SGLangConfig):
        assert f"`rollout.{item.name}`" in page
