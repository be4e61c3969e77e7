"""Every recipe, and other kinds of jobs, on one Ray cluster: the numbers are those of the engine `local`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.config.options import recipe_names
from rlinf_core.isolation import build
from rlinf_core.plugins import plugins

sys.path.insert(0, str(Path(__file__).parent))
from one_node import OneNode

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1200)]
FEW = ("trackers=[]", "train.steps=2", "eval.every=0", "eval.samples=2", "checkpoint.every=0")
WARM = ("warm_start.steps=2", "warm_start.batch_size=4")
ONCE = ("train.mini_batches=1", "train.update_epochs=1")
IMITATED = (*WARM, *ONCE, "train.prompts_per_step=2", "train.num_envs=4", "mode=collocated")
RECIPES = {
    "quickstart": (*WARM, "train.samples_per_step=32", "mode=disaggregated"),
    "calculator": (*WARM, "train.samples_per_step=32", "mode=disaggregated"),
    "counting-blocks": (*WARM, "train.prompts_per_step=4", "mode=collocated"),
    "smollm2-arithmetic": (
        *("train.steps=1", "train.prompts_per_step=2", "algo.group_size=2", "sampling.max_new_tokens=2"),
        "mode=collocated",
    ),
    "inverted-pendulum": ("train.prompts_per_step=2", "mode=disaggregated"),
    "reacher": ("train.prompts_per_step=2", "mode=collocated"),
    "fetch-reach-ppo": ("train.prompts_per_step=4", *ONCE),
    "metaworld-reach-ppo": ("train.prompts_per_step=4", *ONCE),
    "metaworld-reach-grpo": ("train.prompts_per_step=2", "train.mini_batches=1"),
    "tiny-vla-grpo": IMITATED,
    "tiny-vla-ppo": IMITATED,
}
SCENES = ("--data=spatial_relations", "reward={name: length, free: 0, limit: 8}", "sampling.max_new_tokens=4")
TABLE = ("--simulator=tabletop", "simulator.image_size=32", "model.preset=tiny", "train.num_envs=4")
ISOLATED = ("--model=mlp_policy", "--algo=ppo", "train.prompts_per_step=2", "env_pool.isolated=always")
MEGATRON = Path(__file__).parents[2] / "plugins/backends/megatron/tests/megatron_cpu.py"
JOBS = {
    "pictures, selected groups": (
        *("--algo=dapo", "algo.max_rounds=1", "--model=hf_vlm", "model.preset=tiny-paligemma", *SCENES),
        *("train.prompts_per_step=4", "mode=hybrid"),
    ),
    "pictures, adapters": (
        *("--algo=reinforce_pp", "--model=hf_vlm", "model.preset=tiny-qwen3_vl", "lora.rank=4", *SCENES),
        *("train.prompts_per_step=4", "mode=collocated"),
    ),
    "action tokens": (
        "--algo=ppo",
        "--model=openvla",
        *TABLE,
        "train.prompts_per_step=4",
        "mode=disaggregated",
    ),
    "flow of actions": ("--algo=grpo", "--model=pi0", "model.chunk=2", *TABLE, "train.prompts_per_step=2"),
    "layers in two parts": (
        *("--algo=grpo", "--backend=megatron", f"backend.preload={MEGATRON}", "backend.tensor_parallel=2"),
        *("--model=hf_lm", "model.preset=tiny-qwen2", "--data=sort_digits", "sampling.max_new_tokens=8"),
        *("reward=exact", *WARM, "train.prompts_per_step=4", "mode=collocated"),
    ),
    "robosuite": (*ISOLATED, "--simulator=robosuite", "simulator.task=Lift", "simulator.max_episode_steps=5"),
    "maniskill": (
        *(*ISOLATED, "--simulator=maniskill", "simulator.id=PushCube-v1"),
        "simulator.max_episode_steps=2",
    ),
    "libero": (
        *(*ISOLATED, "--simulator=libero", "simulator.task=0", "simulator.cameras=[]"),
        *("simulator.max_episode_steps=2", "simulator.settle_steps=0"),
    ),
}
VLLM = (
    *("--algo=grpo", "--rollout=vllm", "--model=hf_lm", "model.preset=tiny-qwen2", "--data=sort_digits"),
    *("reward={name: length, free: 0, limit: 8}", "sampling.max_new_tokens=8", "train.prompts_per_step=4"),
    *("rollout.cache_gb=0.25", "rollout.max_running=32"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[OneNode]:
    with OneNode(cpus=os.cpu_count() or 1) as node:  # as many threads a rank as locally
        yield node


@pytest.fixture(scope="module")
def run(
    cluster: OneNode, start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Trains by two ranks of an engine; gives the folder of the run."""

    def train(engine: str, *words: str) -> Path:
        output = tmp_path_factory.mktemp(engine) / "run"
        where = (f"--address={cluster.address}",) if engine == "ray" else ()
        args = ["train", f"--engine={engine}", *where, "--ranks=2", f"--output={output}", *FEW, *words]
        done = start(args, env=cluster.environment).done(500)
        assert done.code == 0, done.err[-4000:]
        return output

    return train


@pytest.fixture(scope="module")
def table(start: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demos") / "table"
    args = ["demos", "record", "--recipe=tiny-vla-grpo", "--episodes=4", f"--output={folder}"]
    done = start(args).done(240)
    assert done.code == 0, done.err
    return folder


def records(output: Path) -> list[dict[str, Any]]:
    """Of the steps, without what depends on the clock."""
    found = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    clock = ("time/", "util/", "bubble_ratio")
    return [{k: v for k, v in record.items() if not k.startswith(clock)} for record in found]


def weights(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (output / "export").glob("*.safetensors")}


def check_same(run: Callable[..., Path], *words: str) -> None:
    local, ray = run("local", *words), run("ray", *words)
    theirs, ours = records(local), records(ray)
    assert len(theirs) > 1
    assert [record["step"] for record in ours] == [record["step"] for record in theirs]
    pairs = zip(ours, theirs, strict=True)
    assert [each for one, other in pairs for each in one.items() ^ other.items()] == []
    assert weights(local)
    assert weights(ray) == weights(local)


def test_no_recipe_is_left_out() -> None:
    assert set(RECIPES) == set(recipe_names())


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_ends_on_ray_with_the_same_bits_as_locally(
    recipe: str, run: Callable[..., Path], request: pytest.FixtureRequest
) -> None:
    words = RECIPES[recipe]
    if words is IMITATED:
        words = (*words, f"warm_start.demonstrations={request.getfixturevalue('table')}")
    check_same(run, f"--recipe={recipe}", *words)


@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_on_ray_with_the_same_bits_as_locally(job: str, run: Callable[..., Path]) -> None:
    if JOBS[job][: len(ISOLATED)] == ISOLATED:
        build(plugins().get("simulators", job))
    check_same(run, *JOBS[job])


@pytest.mark.parametrize("mode", ["collocated", "disaggregated"])
def test_vllm_in_its_environment_answers_to_a_job_on_ray(mode: str, run: Callable[..., Path]) -> None:
    build(plugins().get("rollouts", "vllm"))
    trained = [record for record in records(run("ray", *VLLM, f"mode={mode}")) if record["step"]]
    assert len(trained) == 2
    for record in trained:
        assert 0 < record["train/logprob_mismatch"] < 1e-4
        assert record["train/grad_norm"] > 0
