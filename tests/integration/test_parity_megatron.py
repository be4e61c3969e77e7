"""FSDP and Megatron do the same on the same batch: losses, gradient norms, weights and log-probabilities.

However the model lies on Megatron's ranks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from rlinf_core.api import POLICY, LoRAConfig, TrainerContext, Want
from rlinf_core.types import Sampling

TESTS = Path(__file__).parents[2] / "plugins/backends/megatron/tests"
sys.path.insert(0, str(TESTS))
import megatron_cases as cases  # noqa: E402

QUICK = ("tp2", "pp2", "dp2-distributed")
ELSEWHERE = (  # tested beside the plugin
    "one-after-the-other",
    "conformance",
    "offloaded",
    "packed-pp2",
    "moved-to-tp2",
    "moved-to-pp2",
    "moved-to-dp2",
)
ADAPTED = {
    "adapters": cases.ADAPTERS,
    "adapters-tp2": cases.ADAPTERS,
    "adapters-pp2": cases.SOME_ADAPTERS,
}
VALUED = ("values", "values-tp2", "values-pp2", "values-cp2", "values-dp2")
NIGHTLY = ("adapters", "adapters-pp2", "values", "values-cp2", "values-dp2", "padded-pp2")
SLOW = tuple(name for name in cases.CASES if name not in (*QUICK, *ELSEWHERE, *NIGHTLY))
PLAIN = [name for name in SLOW if name not in ("truncating", "bf16-tp2", *ADAPTED, *VALUED)]
KINDS = {
    "llama-tp2": "llama",
    "qwen3-tp2": "qwen3",
    "cp2-pp2": "qwen3",
    "experts": "qwen3_moe",
    "experts-ep2": "qwen3_moe",
}
TRUNCATED = Sampling(temperature=0.7, top_k=40, top_p=0.9, min_new_tokens=3)


def ran(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the cases keep, in processes of their own: there `torch.cuda` stands for the CPU."""
    command = [sys.executable, "-W", "ignore", str(TESTS / "megatron_cases.py"), str(folder), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, timeout=600)
    return {name: torch.load(folder / f"{name}.pt") for name in names}


@cache
def by_fsdp(
    kind: str,
    sampling: Sampling | None = None,
    steps: int = cases.STEPS,
    lora: LoRAConfig | None = None,
    want: frozenset[Want] = POLICY,
) -> dict[str, Any]:
    """The same training by the other backend, on one rank."""
    from rlinf_backend_fsdp.backend import FSDPBackend
    from rlinf_backend_fsdp.config import FSDPConfig

    model = cases.valued_model() if "values" in want else cases.small_model(kind)
    trainer = FSDPBackend(FSDPConfig()).build(
        model, cases.OPTIMIZER, lora or LoRAConfig(), TrainerContext(total_steps=10), sampling=sampling
    )
    start = trainer.outputs(cases.batch_of(model, cases.rows()).inputs, POLICY)
    found = {"start": start.logprobs_BT.clone(), "first_weights": cases.weights(trainer)}
    return found | cases.train(trainer, model, steps, want)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return ran(tmp_path_factory.mktemp("megatron"), QUICK)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return ran(tmp_path_factory.mktemp("megatron"), SLOW)


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return ran(tmp_path_factory.mktemp("megatron"), NIGHTLY)


def check_same(got: dict[str, Any], expected: dict[str, Any]) -> None:
    """To 1e-4 of each number. Weights near zero may be off by 1e-6, a thousandth of a step."""
    torch.testing.assert_close(
        torch.tensor(got["losses"]), torch.tensor(expected["losses"]), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(torch.tensor(got["norms"]), torch.tensor(expected["norms"]), rtol=1e-4, atol=0)
    assert set(got["weights"]) == set(expected["weights"])
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(
            got["weights"][name], weight, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
    for name, value in expected["outputs"].items():
        torch.testing.assert_close(got["outputs"][name], value, rtol=1e-4, atol=1e-4)


def check_case(got: dict[str, Any], expected: dict[str, Any]) -> None:
    """Converted weights are those that came in, and what the network says of them is what the module says."""
    for name, weight in expected["first_weights"].items():
        assert torch.equal(got["first_weights"][name], weight), name
    torch.testing.assert_close(got["start"], expected["start"], rtol=0, atol=1e-5)
    torch.testing.assert_close(got["reference"], got["start"], rtol=0, atol=1e-6)
    check_same(got, expected)


@pytest.mark.parametrize("name", QUICK)
def test_megatron_trains_as_fsdp_does(name: str, quick: dict[str, dict[str, Any]]) -> None:
    check_case(quick[name], by_fsdp(KINDS.get(name, "qwen2")))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_megatron_trains_as_fsdp_does_in_every_layout(name: str, slow: dict[str, dict[str, Any]]) -> None:
    check_case(slow[name], by_fsdp(KINDS.get(name, "qwen2")))


@pytest.mark.slow
@pytest.mark.nightly
def test_megatron_trains_as_fsdp_does_on_padded_rows(nightly: dict[str, dict[str, Any]]) -> None:
    check_case(nightly["padded-pp2"], by_fsdp("qwen2"))


def check_adapted(got: dict[str, Any], lora: LoRAConfig) -> None:
    """Adapters train as peft's do; what is sent, marked, saved and exported is what was trained."""
    expected = by_fsdp("qwen2", lora=lora)
    check_case(got, expected)
    assert set(got["trained"]) == {name for name in expected["weights"] if ".lora_" in name}
    for name, weight in got["weights"].items():
        assert (".lora_" in name) != torch.equal(weight, got["first_weights"][name]), name
    torch.testing.assert_close(got["marked_reference"], got["marked"], rtol=0, atol=1e-6)
    check_same(got["resumed"], got["expected"])
    torch.testing.assert_close(got["exported"]["adapter"], got["last"], rtol=0, atol=1e-5)
    torch.testing.assert_close(got["exported"]["merged"], got["last"], rtol=0, atol=1e-5)
    assert not torch.allclose(got["last"], got["start"], atol=1e-3)


@pytest.mark.slow
def test_adapters_train_as_those_of_fsdp_do(slow: dict[str, dict[str, Any]]) -> None:
    """Their parts lie on two ranks: here output rows, there input columns."""
    check_adapted(slow["adapters-tp2"], ADAPTED["adapters-tp2"])


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in ADAPTED if name in NIGHTLY])
def test_adapters_train_as_those_of_fsdp_do_in_every_layout(
    name: str, nightly: dict[str, dict[str, Any]]
) -> None:
    """With pipeline parallelism some linear layers alone have one, and activations are computed again."""
    check_adapted(nightly[name], ADAPTED[name])


def check_valued(got: dict[str, Any]) -> None:
    """Values train as with the other backend, are there without log-probabilities, and survive a save."""
    check_case(got, by_fsdp("qwen2", want=cases.BOTH))
    values, logprob = got["alone"]
    assert logprob == 0
    torch.testing.assert_close(values, got["outputs"]["values"], rtol=0, atol=1e-6)
    torch.testing.assert_close(got["loaded"], values, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VALUED if name in SLOW])
def test_value_heads_train_as_those_of_fsdp_do(name: str, slow: dict[str, dict[str, Any]]) -> None:
    check_valued(slow[name])


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in VALUED if name in NIGHTLY])
def test_value_heads_train_as_those_of_fsdp_do_in_every_layout(
    name: str, nightly: dict[str, dict[str, Any]]
) -> None:
    check_valued(nightly[name])


@pytest.mark.slow
def test_a_vocabulary_in_parts_is_cut_as_a_whole_one(slow: dict[str, dict[str, Any]]) -> None:
    """Temperature, top-k, top-p and the least length, of which each rank sees half of the tokens."""
    check_same(slow["truncating"], by_fsdp("qwen2", TRUNCATED, 1))


@pytest.mark.slow
def test_bfloat16_learns_what_float32_does(slow: dict[str, dict[str, Any]]) -> None:
    """Parameters have eight bits of mantissa: log-probabilities are off by hundredths, losses by percents."""
    got, expected = slow["bf16-tp2"], by_fsdp("qwen2")
    assert {weight.dtype for weight in got["weights"].values()} == {torch.bfloat16}
    torch.testing.assert_close(got["start"], expected["start"], rtol=0, atol=0.1)
    torch.testing.assert_close(torch.tensor(got["norms"]), torch.tensor(expected["norms"]), rtol=0.05, atol=0)
    moved = expected["losses"][0] - expected["losses"][-1]
    assert abs(got["losses"][-1] - expected["losses"][-1]) < 0.1 * moved
