"""What the project's own planner and simulator say of 1,024 and 10,240 GPUs: the tables of `docs/scale.md`.

Nothing here was measured on a GPU. Data sheets, published models and efficiencies that are assumed go in, the
planner chooses a plan for them, the simulator plays a step of it, and plain arithmetic says what weights and
scale events take. Takes seconds, needs no GPU, and gives the same tables every time:

    python benchmarks/scale.py            # prints them
    python benchmarks/scale.py --write    # into the page
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlinf_core.cluster.cluster import Cluster, Node
from rlinf_core.schedule.curve import Coefficients
from rlinf_core.schedule.graph import Component, Edge, Graph
from rlinf_core.schedule.plan import Plan
from rlinf_core.schedule.profile import MemoryUse, Profile, WrittenCurve
from rlinf_core.schedule.search import Candidate, search

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
GB = 1e9

# NVIDIA's data sheets of the H100 SXM5 (80 GB) and of the DGX H100
PEAK = 989e12  # FLOP/s, bfloat16, dense
HBM = 3.35e12  # bytes a second
MEMORY = 80 * GB
NVLINK = 450 * GB  # bytes a second in one direction
NIC = 50 * GB  # 400 Gb/s for each GPU
PCIE = 64 * GB  # generation 5, 16 lanes, in one direction
PER_NODE = 8

# assumed: nothing of it was measured here
TRAINS = 0.40  # of the peak; 0.38 to 0.43 in "The Llama 3 Herd of Models" (2024), table 4
READS = 0.60  # of the memory's bandwidth, while tokens are drawn
LINKS = 0.80  # of every link's bandwidth
CACHE = 0.55 * MEMORY  # on each GPU that draws tokens
LAUNCH_S = 0.002  # of a token beyond reading: launches, and collectives of the model's ranks

# measured on two CPU cores (docs/benchmarks.md); the pages' tests compare them
MEASURED = {
    "patch_bytes": 0.0635,  # what changed entries take, over all, after an update of 1e-6 in bfloat16
    "patch_ms": 1853.0,  # to find, encode, apply and check them, of `bytes`, on one core
    "bytes": 988065536.0,
    "bandwidth_over_memcpy": 0.8472,
}


@dataclass(frozen=True)
class Model:
    """A published model and how it is divided."""

    name: str
    parameters: float
    active: float  # for one token
    cache_bytes: float  # of one token, keys and values of all layers
    trained_on: int  # GPUs that hold one copy to train
    drawn_on: tuple[int, ...]  # GPUs that hold one copy to draw tokens, as tried

    @property
    def weights(self) -> float:
        """Bytes in bfloat16."""
        return 2 * self.parameters


@dataclass(frozen=True)
class Job:
    """A step of a run."""

    model: Model
    gpus: int
    samples: int
    prompt: int = 1_000  # tokens
    response: int = 8_000  # on average
    longest: int = 32_000

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.samples * (self.prompt + self.response)


DENSE = Model("70B dense", 70.6e9, 70.6e9, 2 * 80 * 8 * 128 * 2, 8, (4, 8))
MIXTURE = Model("1T mixture", 1.04e12, 32e9, 61 * 576 * 2, 128, (32, 64))
MODELS = (DENSE, MIXTURE)
GPUS = (1_024, 10_240)
JOBS = tuple(Job(model, gpus, 16 * gpus) for model in MODELS for gpus in GPUS)


def cluster(gpus: int) -> Cluster:
    """Nodes of eight GPUs, each GPU with a network card of its own."""
    nodes = tuple(Node(PER_NODE, "H100", MEMORY) for _ in range(gpus // PER_NODE))
    return Cluster(nodes, NVLINK * LINKS, NIC * LINKS, 2e-5)


def graph(job: Job, *, ahead: bool = False) -> Graph:
    """Generation, rewards beside it, and training with a reference; groups of eight."""
    model = job.model
    parts = (
        Component("rollout", model.drawn_on),
        Component("reward", on_devices=False),
        Component("reference", lockstep=True, with_="actor"),
        Component("actor", (model.trained_on,), lockstep=True),
    )
    edges = (
        Edge("rollout", "reward"),
        Edge("reward", "reference", quantum=8, ahead=ahead),
        Edge("reference", "actor", quantum=8),
    )
    return Graph(parts, edges, job.samples, syncs=(("actor", "rollout"),))


def token_s(model: Model, size: int) -> float:
    """Of one step of generation on `size` GPUs with hardly any sample: all weights are read once."""
    return model.weights / size / (HBM * READS) + LAUNCH_S


def drawing(job: Job, size: int) -> Coefficients:
    """The longest response needs a step a token, whatever else runs; each sample adds what its cache takes to
    be read, and its arithmetic."""
    model = job.model
    context = job.prompt + job.response / 2
    read = context * model.cache_bytes / size / (HBM * READS)
    computed = 2 * model.active / size / (PEAK * TRAINS)
    return Coefficients(
        fixed_s=job.longest * token_s(model, size), per_sample_s=job.response * (read + computed)
    )


def tail_s(job: Job, size: int) -> float:
    """Of generation: after the average response has ended, until the longest has."""
    return (job.longest - job.response) * token_s(job.model, size)


def training(job: Job, flops: float, *, reduces: bool) -> Coefficients:
    """`flops` for a parameter and token; gradients are reduced and weights gathered once a step."""
    model = job.model
    each = flops * model.active * (job.prompt + job.response) / model.trained_on / (PEAK * TRAINS)
    around = 2 * model.weights / model.trained_on / (NIC * LINKS)
    return Coefficients(per_sample_s=each, parallel_s=around if reduces else 0.0)


def held(job: Job) -> dict[str, MemoryUse]:
    """Bytes on a GPU; what leaves it for others goes over PCIe."""
    model = job.model
    size = max(model.drawn_on)
    trained = 2 * model.weights / model.trained_on  # weights and gradients
    moments = 12 * model.parameters  # divided among all ranks
    room = model.weights / size + CACHE  # of generation
    slow = PCIE * LINKS
    return {
        "rollout": MemoryUse(room, onload_s=model.weights / size / slow, offload_s=0.0),
        "actor": MemoryUse(
            trained,
            moments,
            onload_s=(trained / 2 + moments / job.gpus) / slow,
            offload_s=(trained / 2 + moments / job.gpus) / slow,
        ),
    }


def profile(job: Job) -> Profile:
    """All that the planner is told."""
    model = job.model
    curves = [WrittenCurve("rollout", drawing(job, size), "H100", size) for size in model.drawn_on]
    for name, flops, reduces in (("reference", 2, False), ("actor", 6, True)):
        law = training(job, flops, reduces=reduces)
        curves.append(WrittenCurve(name, law, "H100", model.trained_on))
    return Profile(
        memory=held(job),
        sample_bytes={"rollout": 16.0 * (job.prompt + job.response)},
        weight_bytes={"actor": model.weights},
        sync_shared_s=gathered_s(model),
        curves=tuple(curves),
    )


def gathered_s(model: Model) -> float:
    """Every GPU that draws takes in the part that it holds, from others beside it or over its own card."""
    rate = NVLINK if model.trained_on <= PER_NODE else NIC
    return model.weights / max(model.drawn_on) / (rate * LINKS)


@cache
def best(job: Job, *, ahead: bool = False) -> Candidate:
    """The planner's first choice."""
    return search(graph(job, ahead=ahead), profile(job), cluster(job.gpus), top=1).candidates[0]


def broadcast_s(model: Model) -> float:
    """As built: one GPU sends everything, in a ring or a tree that keeps its card busy."""
    return model.weights / (NIC * LINKS)


def parts_s(model: Model) -> float:
    """As every GPU that draws could have it: its own part over its own card. Not built between machines."""
    return model.weights / max(model.drawn_on) / (NIC * LINKS)


def changed_core_s(model: Model) -> float:
    """To encode changed entries on one core."""
    return MEASURED["patch_ms"] / 1e3 * model.weights / MEASURED["bytes"]


@dataclass(frozen=True)
class Growth:
    """One more copy of the trained model beside `copies`. Moments are divided evenly, in order, before and
    after; bytes are those of the GPU that takes in the most."""

    model: Model
    copies: int

    @property
    def weights(self) -> float:
        """Of a new GPU."""
        return self.model.weights / self.model.trained_on

    @property
    def moments(self) -> float:
        """Of any GPU, at most: all that it has afterwards."""
        return 12 * self.model.parameters / self.model.trained_on / (self.copies + 1)

    @property
    def grow_s(self) -> float:
        """Over the card of a new GPU, whose others share the sending."""
        return (self.weights + self.moments) / (NIC * LINKS)

    @property
    def shrink_s(self) -> float:
        """Back: what the GPUs that leave had is divided among the others."""
        return 12 * self.model.parameters / self.model.trained_on / self.copies / (NIC * LINKS)


def growth(job: Job) -> Growth:
    """Of what trains in the plan with rows of their own step."""
    return Growth(job.model, len(best(job).plan.assignments["actor"].devices) // job.model.trained_on)


def cached(job: Job, plan: Plan) -> float:
    """Bytes of all its responses in the cache of one GPU, each at half of its length."""
    seat = plan.assignments["rollout"]
    samples = -(-job.samples * seat.model_parallel // len(seat.devices))
    return samples * (job.prompt + job.response / 2) * job.model.cache_bytes / seat.model_parallel


def inputs() -> Iterator[Sequence[str]]:
    """The models, and a token's time."""
    yield "", *(model.name for model in MODELS)
    yield "parameters; of them for one token", *(f"{m.parameters:.3g}; {m.active:.3g}" for m in MODELS)
    yield "bytes of a token in the cache", *(f"{m.cache_bytes:,.0f}" for m in MODELS)
    yield "weights in bfloat16", *(f"{m.weights / GB:,.0f} GB" for m in MODELS)
    yield "GPUs that hold one copy to train", *(str(m.trained_on) for m in MODELS)
    yield "GPUs that hold one copy to draw tokens, as tried", *(_either(m.drawn_on) for m in MODELS)
    yield (
        "a token of one sample: weights read once, and 2 ms",
        *(", ".join(f"{1e3 * token_s(m, size):.1f} ms" for size in m.drawn_on) for m in MODELS),
    )


def steps() -> Iterator[Sequence[str]]:
    """Plans and their simulation, on policy and with rows of the step before."""
    yield (
        *("model", "GPUs", "samples", "rows", "plan"),
        *("generation", "tail of it", "reference", "training", "weights", "switches", "step", "bubble"),
        "tokens/s",
    )
    for job in JOBS:
        for ahead in (False, True):
            found = best(job, ahead=ahead)
            simulation = found.simulation
            generation, *busy = (_s(simulation.busy_s[name]) for name in ("rollout", "reference", "actor"))
            tail = tail_s(job, found.plan.assignments["rollout"].model_parallel)
            yield (
                *(
                    job.model.name,
                    f"{job.gpus:,}",
                    f"{job.samples:,}",
                    "one step old" if ahead else "on policy",
                ),
                shown(found.plan),
                *(
                    generation,
                    _s(tail),
                    *busy,
                    _s(simulation.seconds("transfer")),
                    _s(simulation.seconds("load")),
                ),
                *(
                    _s(simulation.step_s),
                    f"{simulation.bubble_ratio:.1%}",
                    f"{job.tokens / simulation.step_s:,.0f}",
                ),
            )


def syncs() -> Iterator[Sequence[str]]:
    """What an update takes."""
    yield (
        "model",
        "weights",
        "on the same GPUs",
        "broadcast",
        "each its own part",
        "changed entries",
        "their encoding",
    )
    for model in MODELS:
        changed = MEASURED["patch_bytes"] * broadcast_s(model)
        core = changed_core_s(model)
        yield (
            *(model.name, f"{model.weights / GB:,.0f} GB", _s(gathered_s(model)), _s(broadcast_s(model))),
            *(
                _s(parts_s(model)),
                _s(changed),
                f"{core:,.0f} s of one core; {core / model.trained_on:.2g} s of {model.trained_on}",
            ),
        )


def events() -> Iterator[Sequence[str]]:
    """What scale events move."""
    yield "model", "GPUs", "copies", "weights of a new GPU", "moments of a GPU", "a copy joins", "it leaves"
    for job in JOBS:
        event = growth(job)
        yield (
            *(job.model.name, f"{job.gpus:,}", f"{event.copies} -> {event.copies + 1}"),
            *(
                f"{event.weights / GB:.3g} GB",
                f"{event.moments / GB:.3g} GB",
                _s(event.grow_s),
                _s(event.shrink_s),
            ),
        )


TABLES = {"inputs": inputs, "steps": steps, "syncs": syncs, "events": events}


def shown(plan: Plan) -> str:
    """A plan on one line."""
    parts = [
        f"{name} on {len(part.devices):,} by {part.model_parallel}"
        f"{f', {part.chunk:,} at once' if part.chunk else ''}"
        for name, part in plan.assignments.items()
    ]
    return f"{plan.mode}: {'; '.join(parts)}"


def table(name: str) -> str:
    """In Markdown."""
    head, *rows = (f"| {' | '.join(row)} |" for row in TABLES[name]())
    return "\n".join((head, "|---" * (head.count(" | ") + 1) + "|", *rows))


def filled(page: str) -> str:
    """A page with every table in its place. Raises `KeyError` for one that has no place."""
    for name in TABLES:
        begin, end = f"<!-- table of {name} -->", f"<!-- end of {name} -->"
        before, mark, rest = page.partition(begin)
        _, last, after = rest.partition(end)
        if not mark or not last:
            raise KeyError(f"{PAGE.name} has no marks {begin!r} and {end!r}")
        page = f"{before}{begin}\n\n{table(name)}\n\n{end}{after}"
    return page


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:,.0f} s"


def _either(sizes: Sequence[int]) -> str:
    return " or ".join(map(str, sizes))


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/scale.md")
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text()))
    else:
        print("\n\n".join(map(table, TABLES)))


if __name__ == "__main__":
    main()
