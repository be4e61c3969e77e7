"""Trains small models with Megatron on the CPU, as one rank or several, and keeps what comes out.

`megatron_cases.py FOLDER NAME...` imports everything once and forks the ranks of each case. Axes: B rows, T
response tokens.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron_models import batch_of, loss, rows, small_model, valued_model
from torch import Tensor

from rlinf_core.api import (
    POLICY,
    DataShare,
    LoRAConfig,
    Model,
    OptimizerConfig,
    Trainer,
    TrainerContext,
    Want,
)
from rlinf_core.cluster.devices import free_port
from rlinf_core.types import Sampling

CPU = str(Path(__file__).parent / "megatron_cpu.py")
# With a larger eps than usual, so that a gradient that is nothing but rounding does not move a weight.
OPTIMIZER = OptimizerConfig(lr=1e-3, eps=1e-5, weight_decay=0.1, grad_clip=1.0, schedule="linear")
DENOMINATOR = 40.0
BOTH: frozenset[Want] = POLICY | {"values"}
ADAPTERS = LoRAConfig(rank=4, alpha=8.0)
SOME_ADAPTERS = LoRAConfig(rank=4, alpha=8.0, target_modules=("q_proj", "v_proj", "down_proj"))
STEPS = 3


def train(
    trainer: Trainer, model: Model, steps: int = STEPS, want: frozenset[Want] = POLICY
) -> dict[str, Any]:
    """Some steps on this rank's share, in two micro-batches; norms, losses of all ranks, weights, outputs."""
    share = trainer.share or DataShare(0, 1)
    mine = rows()[share.index :: share.count]
    norms, losses = [], []
    for _ in range(steps):
        parts = [batch_of(model, part) for part in (mine[:1], mine[1:])]
        metrics = trainer.accumulate_all(parts, loss, want)
        losses.append(trainer.all_sum([metrics["loss"][0] if metrics else 0.0])[0])
        norms.append(trainer.step(DENOMINATOR).grad_norm)
    outputs = trainer.outputs(batch_of(model, rows()).inputs, want)
    said = {"logprobs": outputs.logprobs_BT.clone(), "entropy": _cloned(outputs.entropy_BT)}
    if outputs.values_BT is not None:
        said["values"] = outputs.values_BT.clone()
    return {"norms": norms, "losses": losses, "weights": weights(trainer), "outputs": said}


def weights(trainer: Trainer, *, trainable_only: bool = False) -> dict[str, Tensor]:
    """As the receivers get them."""
    buckets = trainer.weights(trainable_only=trainable_only)
    return {name: value.clone() for bucket in buckets for name, value in bucket.tensors.items()}


def build(
    model: Model,
    rank: int,
    size: int,
    sampling: Sampling | None = None,
    lora: LoRAConfig | None = None,
    **settings: Any,
) -> Any:
    """One rank of a Megatron trainer."""
    return backend(**settings).build(
        model,
        OPTIMIZER,
        lora or LoRAConfig(),
        TrainerContext(rank, size, total_steps=10),
        sampling=sampling,
        keep_reference=True,
    )


def backend(**settings: Any) -> Any:
    """The backend with these settings, on the CPU."""
    from rlinf_backend_megatron.backend import MegatronBackend
    from rlinf_backend_megatron.config import MegatronConfig

    return MegatronBackend(MegatronConfig(preload=CPU, **settings))


def trained(kind: str, packing: str = "auto", **settings: Any) -> Callable[[int, int], dict[str, Any]]:
    """A case: log-probabilities at the start, then some steps."""

    def run(rank: int, size: int) -> dict[str, Any]:
        model = small_model(kind, packing)
        trainer = build(model, rank, size, **settings)
        inputs = batch_of(model, rows()).inputs
        start = trainer.outputs(inputs, POLICY)
        found = {"start": start.logprobs_BT.clone(), "first_weights": weights(trainer)}
        found |= train(trainer, model)
        found["reference"] = trainer.outputs(inputs, POLICY, reference=True).logprobs_BT.clone()
        trainer.close()
        return found

    return run


def adapted(kind: str, lora: LoRAConfig, **settings: Any) -> Callable[[int, int], dict[str, Any]]:
    """A case: adapters train; the reference has none, before and after; what is exported."""

    def run(rank: int, size: int) -> dict[str, Any]:
        model, folder = small_model(kind), Path(os.environ["MEGATRON_CASE_FOLDER"])
        trainer = build(model, rank, size, lora=lora, **settings)
        inputs = batch_of(model, rows()).inputs
        start = trainer.outputs(inputs, POLICY)
        found = {"start": start.logprobs_BT.clone(), "first_weights": weights(trainer)}
        found |= train(trainer, model)
        found["reference"] = trainer.outputs(inputs, POLICY, reference=True).logprobs_BT.clone()
        found["trained"] = weights(trainer, trainable_only=True)
        trainer.mark_reference()
        found["marked"] = trainer.outputs(inputs, POLICY).logprobs_BT.clone()
        train(trainer, model, 1)
        trainer.save(folder / "trainer")
        expected = train(trainer, model, 1)
        trainer.close()
        again = build(model, rank, size, lora=lora, **settings)
        again.load(folder / "trainer")
        found["marked_reference"] = again.outputs(inputs, POLICY, reference=True).logprobs_BT.clone()
        found["resumed"], found["expected"] = train(again, model, 1), expected
        again.export(folder / "export")
        if rank == size - 1:
            found["exported"] = exported_logprobs(folder / "export", inputs)
        found["last"] = again.outputs(inputs, POLICY).logprobs_BT.clone()
        again.close()
        return found

    return run


def exported_logprobs(folder: Path, inputs: Any) -> dict[str, Tensor]:
    """What plain peft says on the initial model with the exported adapter, and what merged weights say."""
    import peft
    from safetensors.torch import load_file

    model = small_model("qwen2")
    base = peft.PeftModel.from_pretrained(model.module(0), str(folder / "adapter"))
    merged = model.module(0)
    merged.load_state_dict(load_file(folder / "model.safetensors"), strict=False)  # a tied head is left out
    with torch.no_grad():
        return {
            "adapter": model.policy_outputs(base, inputs, POLICY).logprobs_BT,
            "merged": model.policy_outputs(merged, inputs, POLICY).logprobs_BT,
        }


def valued(**settings: Any) -> Callable[[int, int], dict[str, Any]]:
    """A case: a policy with a value head, which starts at values that are not 0."""

    def run(rank: int, size: int) -> dict[str, Any]:
        model = valued_model()
        trainer = build(model, rank, size, **settings)
        start = trainer.outputs(batch_of(model, rows()).inputs, BOTH)
        found = {"start": start.logprobs_BT.clone(), "first_weights": weights(trainer)}
        found |= train(trainer, model, want=BOTH)
        inputs = batch_of(model, rows()).inputs
        found["reference"] = trainer.outputs(inputs, POLICY, reference=True).logprobs_BT.clone()
        alone = trainer.outputs(inputs, frozenset({"values"}))
        found["alone"] = [alone.values_BT.clone(), float(alone.logprobs_BT.abs().max())]
        trainer.save(Path(os.environ["MEGATRON_CASE_FOLDER"]) / "trainer")
        trainer.load(Path(os.environ["MEGATRON_CASE_FOLDER"]) / "trainer")
        found["loaded"] = trainer.outputs(inputs, BOTH).values_BT.clone()
        trainer.close()
        return found

    return run


def packed(rank: int, size: int) -> dict[str, Any]:
    """Gradients of each family by packed rows and by padded ones, and those of micro-batches that are in the
    pipeline at once and one after the other."""
    found: dict[str, Any] = {}
    for kind in ("llama", "qwen2", "qwen3", "qwen3_moe"):
        for packing in ("never", "always"):
            model = small_model(kind, packing)
            trainer = build(model, rank, size, pipeline_parallel=size)
            found[f"{kind} {packing} packs"] = trainer.padding_free
            parts = [batch_of(model, rows()[place : place + 2]) for place in (0, 2, 4, 6)]
            trainer.accumulate_all(parts, loss)
            found[f"{kind} {packing}"] = gradients(trainer)
            if kind == "qwen2":
                for part in parts:
                    trainer.accumulate(part, loss)
                found[packing] = gradients(trainer)
            trainer.close()
    return found


def one_after_the_other(rank: int, size: int) -> list[float]:
    """Sums over the ranks by many trainers at one address, where the first rank leaves late and the second
    comes early."""
    model, found = small_model("qwen2"), []
    for number in range(5):
        trainer = build(model, rank, size)
        found += trainer.all_sum([float(rank + number)])
        time.sleep(0.2 * (rank == 0))
        trainer.close()
    return found


def gradients(trainer: Any) -> dict[str, Tensor]:
    """Of this stage's parameters, by Megatron's names; forgotten afterwards."""
    found = {name: held.main_grad.clone() for name, held in trainer.network.named_parameters()}
    trainer.optimizer.clear()
    return found


def truncating(rank: int, size: int) -> dict[str, Any]:
    """Log-probabilities under every part of the sampling transform at once."""
    model = small_model("qwen2")
    sampling = Sampling(temperature=0.7, top_k=40, top_p=0.9, min_new_tokens=3)
    trainer = build(model, rank, size, sampling, tensor_parallel=2)
    found = train(trainer, model, 1)
    trainer.close()
    return found


def offloaded(rank: int, size: int) -> dict[str, Any]:
    """Two steps with and without leaving the device between micro-batches, host memory being elsewhere."""
    model, found = small_model("qwen2"), {}
    for leaves in (False, True):
        trainer = build(model, rank, size)
        trainer.host_is_elsewhere = True
        for _ in range(2):
            for chosen in (rows()[:3], rows()[3:]):
                trainer.accumulate(batch_of(model, chosen), loss)
                if leaves:
                    trainer.offload()
                    found["left"] = trainer.memory_bytes()
                    found["told"] = len(tuple(trainer.held()))
                    trainer.onload()
            trainer.step(DENOMINATOR)
            if leaves:
                trainer.offload()
        found["leaving" if leaves else "staying"] = weights(trainer)
        found["held"] = trainer.memory_bytes()
        trainer.close()
    return found


def moved(**others: Any) -> Callable[[int, int], dict[str, Any]]:
    """A case: train two steps with TP=2, save, train on; load with other sizes, train on."""

    def run(rank: int, size: int) -> dict[str, Any]:
        model, path = small_model("qwen2"), Path(os.environ["MEGATRON_CASE_FOLDER"]) / "trainer"
        first = build(model, rank, size, tensor_parallel=2)
        train(first, model, 1)
        first.mark_reference()
        train(first, model, 1)
        first.save(path)
        expected = train(first, model, 2)
        first.close()
        second = build(model, rank, size, **others)
        second.load(path)
        found = train(second, model, 2)
        inputs = batch_of(model, rows()).inputs
        found["reference"] = second.outputs(inputs, POLICY, reference=True).logprobs_BT.clone()
        found["version"], found["expected"] = second.version, expected
        second.close()
        return found

    return run


def conforms(_rank: int, _size: int) -> dict[str, str]:
    """The outcome of every check of the conformance kit."""
    from rlinf_core.testing.checks import run_checks
    from rlinf_core.testing.subject import subject

    checked = run_checks(subject("backends", "megatron", {"preload": CPU}))
    return {result.name: f"{result.outcome} {result.message}".strip() for result in checked}


CASES: dict[str, tuple[int, Callable[[int, int], Any]]] = {
    "one-after-the-other": (2, one_after_the_other),
    "conformance": (1, conforms),
    "one": (1, trained("qwen2")),
    "tp2": (2, trained("qwen2", tensor_parallel=2)),
    "pp2": (2, trained("qwen2", pipeline_parallel=2)),
    "pp2-recomputed": (2, trained("qwen2", pipeline_parallel=2, recompute="full")),
    "dp2": (2, trained("qwen2", distributed_optimizer=False)),
    "dp2-distributed": (2, trained("qwen2")),
    "tp2-pp2": (4, trained("qwen2", tensor_parallel=2, pipeline_parallel=2)),
    "tp2-dp2": (4, trained("qwen2", tensor_parallel=2)),
    "cp2": (2, trained("qwen2", context_parallel=2)),
    "cp2-pp2": (4, trained("qwen3", context_parallel=2, pipeline_parallel=2)),
    "llama-tp2": (2, trained("llama", tensor_parallel=2)),
    "qwen3-tp2": (2, trained("qwen3", tensor_parallel=2)),
    "experts": (1, trained("qwen3_moe")),
    "experts-ep2": (2, trained("qwen3_moe", expert_parallel=2)),
    "bf16-tp2": (2, trained("qwen2", tensor_parallel=2, precision="bf16")),
    "adapters": (1, adapted("qwen2", ADAPTERS)),
    "adapters-tp2": (2, adapted("qwen2", ADAPTERS, tensor_parallel=2)),
    "adapters-pp2": (2, adapted("qwen2", SOME_ADAPTERS, pipeline_parallel=2, recompute="full")),
    "values": (1, valued()),
    "values-tp2": (2, valued(tensor_parallel=2)),
    "values-pp2": (2, valued(pipeline_parallel=2)),
    "values-cp2": (2, valued(context_parallel=2)),
    "values-dp2": (2, valued()),
    "packed-pp2": (2, packed),
    "padded-pp2": (2, trained("qwen2", "never", pipeline_parallel=2)),
    "truncating": (2, truncating),
    "offloaded": (2, offloaded),
    "moved-to-tp2": (2, moved(tensor_parallel=2)),
    "moved-to-pp2": (2, moved(pipeline_parallel=2)),
    "moved-to-dp2": (2, moved()),
}


def main(folder: Path, names: Sequence[str]) -> int:
    """Run the cases one after the other; the number of ranks that failed."""
    torch.set_num_threads(1)
    runpy.run_path(CPU)
    import rlinf_backend_megatron.trainer  # noqa: F401 - before the ranks are forked, so that they share it

    failed = 0
    for name in names:
        size, run = CASES[name]
        os.environ |= {
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["MEGATRON_CASE_FOLDER"] = scratch
            ranks = [_forked(run, rank, size, folder / f"{name}.pt") for rank in range(size)]
            failed += _failed(ranks)
    return failed


def _failed(ranks: Sequence[int]) -> int:
    """Wait for all; one that fails takes the others with it, which would wait for it."""
    failed, left = 0, set(ranks)
    while left:
        process, status = os.wait()
        if process in left and os.waitstatus_to_exitcode(status):
            failed += 1
            for other in left - {process}:
                os.kill(other, signal.SIGKILL)
        left.discard(process)
    return failed


def _forked(run: Callable[[int, int], Any], rank: int, size: int, kept: Path) -> int:
    process = os.fork()
    if process:
        return process
    os.environ["RANK"] = str(rank)
    code = 1
    try:
        found = run(rank, size)
        if rank == size - 1:  # of the last stage, which knows the loss
            torch.save(found, kept)
        code = 0
    except BaseException:  # a rank is a process of its own: its error is written here or nowhere
        traceback.print_exc()
    finally:
        from multiprocessing.util import _exit_function

        _exit_function()  # Megatron's checkpoints leave a helper process, which this ends
        sys.stderr.flush()
        os._exit(code)


def _cloned(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise AssertionError("no entropies")
    return tensor.clone()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
