"""Changes the number of Megatron's ranks, and how the model lies on them, while it trains; on the CPU.

`megatron_scaled.py FOLDER NAME...` runs cases as `megatron_cases.py` does. Processes tell each other what
the driver of a run would tell them, by files.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import megatron_cases as cases
import torch
from megatron_models import batch_of, rows, small_model, valued_model

from rlinf_core.api import POLICY, LoRAConfig, Model, TrainerContext, Want
from rlinf_core.cluster.devices import free_port
from rlinf_core.comm.handover import Outbox, fill
from rlinf_core.errors import ConfigError
from rlinf_core.schedule.elastic import plan_moves

Layout = tuple[int, dict[str, Any]]  # ranks, and settings that are others than before


class Talk:
    """What all processes tell each other, in turn."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.turn = rank, size, 0
        self.folder = Path(os.environ["MEGATRON_CASE_FOLDER"])

    def all(self, told: Any) -> list[Any]:
        """Of every process, in their order."""
        self.turn += 1
        files = [self.folder / f"{self.turn}-{rank}" for rank in range(self.size)]
        draft = files[self.rank].with_suffix(".draft")
        draft.write_bytes(pickle.dumps(told))
        draft.rename(files[self.rank])
        while not all(file.exists() for file in files):
            time.sleep(0.005)
        return [pickle.loads(file.read_bytes()) for file in files]


class Member:
    """One process, which has a rank or none."""

    def __init__(self, talk: Talk, model: Model, lora: LoRAConfig, settings: dict[str, Any]) -> None:
        self.talk, self.model, self.lora = talk, model, lora
        self.settings, self.trainer, self.moved_bytes = settings, None, 0
        self.want: frozenset[Want] = POLICY

    def begin(self, ranks: int) -> None:
        """The first ranks."""
        self._meet(ranks)
        if self.talk.rank < ranks:
            self.trainer = self.build(ranks)

    def build(self, ranks: int) -> Any:
        """A trainer from the model."""
        return cases.build(self.model, self.talk.rank, ranks, lora=self.lora, **self.settings)

    def scale(self, ranks: int, **settings: Any) -> None:
        """Be one of so many, or none."""
        rank, trainer = self.talk.rank, self.trainer
        self.settings = {**self.settings, **settings}
        if trainer is not None and settings:
            trainer.ground = replace(trainer.ground, config=replace(trainer.ground.config, **settings))
        told = self.talk.all(None if trainer is None else (tuple(trainer.held()), trainer.facts()))
        resize = self._resize(ranks, told[0][1]) if rank < ranks else None
        wanted = self.talk.all(None if resize is None else resize.blocks)
        moves = plan_moves(
            {n: each[0] for n, each in enumerate(told) if each}, {n: b for n, b in enumerate(wanted) if b}
        )
        outbox, own = Outbox(moves.given_by(rank)), {} if trainer is None else trainer.held()
        laid = self.talk.all(outbox.lay(own))
        self._meet(ranks)
        self.moved_bytes = moves.moved_bytes
        if resize is None:
            if trainer is not None:
                trainer.close()
            self.trainer = None
        else:
            fill(resize.enter(), moves.taken_by(rank), dict(enumerate(laid)), own)
            self.trainer = resize.finish(told[0][1])
        self.talk.all(None)
        outbox.close()

    def _resize(self, ranks: int, facts: Any) -> Any:
        context = TrainerContext(self.talk.rank, ranks, total_steps=10)
        if self.trainer is not None:
            return self.trainer.resize(context)
        backend = cases.backend(**self.settings)
        return backend.join(self.model, self.lora, context, facts, keep_reference=True)

    def _meet(self, ranks: int) -> None:
        (port, *_) = self.talk.all(free_port())
        os.environ |= {"MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}


def scaled(
    layouts: Sequence[Layout], kind: str = "qwen2", lora: LoRAConfig | None = None, **settings: Any
) -> Callable[[int, int], dict[str, Any]]:
    """A case: two steps by each layout, a mark of the reference after the first one. After each change the
    state is compared with that of a trainer which has read what was saved before."""

    def run(rank: int, size: int) -> dict[str, Any]:
        talk = Talk(rank, size)
        ranks, first = layouts[0]
        model = valued_model() if kind == "valued" else small_model(kind)
        member = Member(talk, model, lora or LoRAConfig(), {**settings, **first})
        member.want = cases.BOTH if kind == "valued" else POLICY
        member.begin(ranks)
        found: dict[str, Any] = {"norms": [], "losses": {}, "unlike": [], "compared": [], "moved": []}
        for number, (ranks, others) in enumerate(layouts):
            if number:
                folder = talk.folder / f"saved-{number}"
                if member.trainer is not None:
                    member.trainer.save(folder)
                member.scale(ranks, **others)
                found["moved"].append(member.moved_bytes)
                _compare(member, ranks, folder, found)
                if member.trainer is not None and "refused" not in found:
                    found["refused"] = _refused(member.trainer)
            if member.trainer is not None:
                _train(member, found, mark=number == 0)
        everybody = talk.all({name: found[name] for name in ("unlike", "compared", "losses")})
        found = talk.all(found if rank == 0 else None)[0]
        found["losses"] = {k: v for each in everybody for k, v in each["losses"].items()}
        for name in ("unlike", "compared"):
            found[name] = [block for each in everybody for block in each[name]]
        if member.trainer is not None:
            member.trainer.close()
        return found

    return run


def _train(member: Member, found: dict[str, Any], *, mark: bool) -> None:
    trainer, model = member.trainer, member.model
    for _ in range(2):
        number = trainer.version
        step = cases.train(trainer, model, 1, member.want)
        found["norms"] += step["norms"]
        if trainer.share.speaks:
            found["losses"][number] = step["losses"][0]
        if mark:
            trainer.mark_reference()
            mark = False
    inputs = batch_of(model, rows()).inputs
    found["reference"] = trainer.outputs(inputs, POLICY, reference=True).logprobs_BT.clone()
    found["weights"], found["version"] = step["weights"], trainer.version


def _compare(member: Member, ranks: int, folder: Path, found: dict[str, Any]) -> None:
    """With a second trainer among the same ranks."""
    if member.trainer is None:
        return
    read = member.build(ranks)
    read.load(folder)
    expected, got = read.held(), member.trainer.held()
    if expected.keys() != got.keys():
        found["unlike"] += [block.name for block in expected.keys() ^ got.keys()]
        return
    found["compared"] += [block.name for block in got]
    found["unlike"] += [block.name for block in got if not torch.equal(got[block], expected[block])]
    counts = [_counts(trainer) for trainer in (member.trainer, read)]
    if counts[0] != counts[1]:
        found["unlike"].append(f"counts {counts}")
    read.close()


def _refused(trainer: Any) -> str:
    """What is said of ranks that nothing can be spread over."""
    try:
        trainer.resize(TrainerContext(0, 3))
    except ConfigError as err:
        return str(err)
    return ""


def _counts(trainer: Any) -> tuple[Any, ...]:
    optimizer = trainer.optimizer
    steps = {float(state["step"]) for part in optimizer.parts() for state in part.optimizer.state.values()}
    return trainer.version, optimizer.steps_taken, optimizer.skipped_steps, sorted(steps)


ONE, DP2 = (1, {}), (2, {})
TP1, TP2 = {"tensor_parallel": 1}, {"tensor_parallel": 2}
PP1, PP2 = {"pipeline_parallel": 1}, {"pipeline_parallel": 2}
EP1, EP2 = {"expert_parallel": 1}, {"expert_parallel": 2}
WHOLE = {"distributed_optimizer": False}
BF16 = {"precision": "bf16"}
SCALED: dict[str, tuple[int, Callable[[int, int], Any]]] = {
    "dp": (2, scaled([ONE, DP2, ONE])),
    "dp-whole": (2, scaled([ONE, DP2, ONE], **WHOLE)),
    "tp": (2, scaled([ONE, DP2, ONE], tensor_parallel=0)),
    "layouts": (2, scaled([DP2, (2, TP2), (2, TP1 | PP2), (2, PP1)])),
    "layouts-whole": (2, scaled([DP2, (2, TP2), (2, TP1 | PP2), (2, PP1)], **WHOLE)),
    "layouts-bf16": (2, scaled([DP2, (2, TP2), (2, TP1 | PP2), (2, PP1)], **BF16)),
    "layouts-bf16-whole": (2, scaled([DP2, (2, TP2), (1, TP1)], **BF16, **WHOLE)),
    "tp-dp": (4, scaled([(1, {}), (4, TP2), (2, {}), (4, TP1 | PP2)])),
    "context": (4, scaled([(2, {"context_parallel": 2}), (4, {}), (2, {"context_parallel": 1})])),
    "experts": (2, scaled([ONE, (2, EP2), (2, EP1)], "qwen3_moe")),
    "experts-4": (4, scaled([(2, EP2), (4, {}), (4, {"expert_parallel": 4}), (1, EP1)], "qwen3_moe")),
    "adapters": (2, scaled([DP2, (2, TP2), (2, TP1 | PP2), (1, PP1)], lora=cases.SOME_ADAPTERS)),
    "qwen3": (2, scaled([DP2, (2, TP2), (2, TP1 | PP2), (2, PP1)], "qwen3")),
    "values": (2, scaled([DP2, (2, TP2), (2, TP1 | PP2), (1, PP1)], "valued")),
    "steady": (1, scaled([ONE, ONE, ONE, ONE])),
    "steady-experts": (1, scaled([ONE, ONE, ONE], "qwen3_moe")),
    "steady-values": (1, scaled([ONE, ONE, ONE, ONE], "valued")),
}


if __name__ == "__main__":
    cases.CASES.update(SCALED)
    sys.exit(cases.main(Path(sys.argv[1]), sys.argv[2:]))
