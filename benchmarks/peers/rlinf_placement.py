"""The peer's side of `planner.py`: the published RLinf auto-placement tool on the cases given on stdin.

    python rlinf_placement.py DIR < cases.json    # DIR holds a checkout of RLinf

Only its planner is used. What it imports for its command line (hydra, its cluster) is left empty, and so
is its fitter of simulator times, which text cases do not need.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

GRAPH = {"rollout": ["actor"], "actor": []}
WITH_INFERENCE = {"rollout": ["inference"], "inference": ["actor"], "actor": []}


def stand_in(name: str, **members: Any) -> None:
    """An empty module with these members, where none is installed."""
    module = ModuleType(name)
    module.__dict__.update(members)
    sys.modules.setdefault(name, module)


def prepare(folder: Path) -> None:
    """Make the tool's modules importable."""
    if not (folder / "auto_placement_worker.py").exists():
        raise SystemExit(f"{folder} holds no auto_placement_worker.py; name a checkout of RLinf")
    sys.path.insert(0, str(folder))
    stand_in("hydra", main=lambda **_: lambda function: function)
    stand_in("rlinf")
    stand_in("rlinf.scheduler", Cluster=object)
    stand_in("rlinf.utils")
    stand_in("rlinf.utils.placement", HybridComponentPlacement=object, ModelParallelComponentPlacement=object)
    try:
        import scipy  # noqa: F401
    except ImportError:
        stand_in("fitter", DataFitter=object)


def choose(case: dict[str, Any]) -> dict[str, Any]:
    """What the tool chooses: devices by component, and the seconds it expects."""
    import util
    from auto_placement_worker import AutoPlacementWorker

    costs, sizes, gpus = case["seconds"], case["model_parallel"], case["gpus"]
    config = SimpleNamespace(
        runner=SimpleNamespace(task_type="reasoning", seq_length=1024),
        algorithm=SimpleNamespace(group_size=case["group_size"], n_minibatches=case["mini_batches"]),
        data=SimpleNamespace(rollout_batch_size=case["groups"]),
        rollout=SimpleNamespace(max_running_requests=case["running"], gpu_memory_utilization=0.5),
        profile_data=SimpleNamespace(
            **{f"{name}_cost": costs.get(name, 1.0) for name in ("actor", "inference", "rollout")}
        ),
    )
    placement = SimpleNamespace(_cluster_num_gpus=gpus, _components=list(costs))
    for name in costs:
        setattr(placement, f"{name}_world_size", gpus)
        setattr(placement, f"{name}_dp_size", gpus // sizes[name])
    arguments = (config, placement, SimpleNamespace(num_accelerators=gpus))
    wanted = len(inspect.signature(util.init_global_config).parameters)
    util.init_global_config(*arguments[:wanted])
    graph = WITH_INFERENCE if "inference" in costs else GRAPH
    found = AutoPlacementWorker(config, placement, graph).run()
    devices = {node.role: [gpus.start, gpus.stop - 1] for node, gpus in found.placement.items()}
    return {"seconds": found.total_cost, "devices": devices}


def main() -> None:
    """Answer every case; what the tool prints meanwhile goes to stderr."""
    prepare(Path(sys.argv[1]) / "toolkits" / "auto_placement")
    cases = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        answers = [choose(case) for case in cases]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
