"""`rlinf plan`: where the components of a run could sit, and what each way is predicted to take."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlinf_core.cli.options import with_options
from rlinf_core.cli.table import print_table
from rlinf_core.config.options import Options
from rlinf_core.errors import ConfigError

if TYPE_CHECKING:
    from rlinf_core.cluster.cluster import Cluster
    from rlinf_core.config.schema import RunConfig
    from rlinf_core.schedule.graph import Graph
    from rlinf_core.schedule.profile import Profile
    from rlinf_core.schedule.search import Candidate, SearchResult

HEADS = ("", "mode", "step", "idle", "memory", "placement", "why not")
GIB = 2**30
ClusterFile = Annotated[
    Path | None,
    typer.Option("--cluster", help="Plan for these nodes (YAML), not this machine.", metavar="FILE"),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", help="What components cost (YAML), measured or written.", metavar="FILE"),
]


@with_options
def command(
    options: Options,
    cluster: ClusterFile = None,
    profile: ProfileFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print the first plan, for plan=FILE.")] = False,
) -> None:
    """Show where a run's components could sit, and how long a step would take.

    Takes the flags of `rlinf train`; nothing is started.
    """
    from rlinf_core.config.check import check
    from rlinf_core.config.compose import compose
    from rlinf_core.plugins import plugins
    from rlinf_core.run.candidates import candidates, profile_path
    from rlinf_core.run.graph import make_graph
    from rlinf_core.schedule.profile_yaml import read_profile

    config = compose(options)
    on = _cluster(config, cluster)
    graph = make_graph(config)
    warnings = check(config, plugins(), min(on.size, graph.samples))
    path = profile_path(config, profile)
    known = read_profile(path)
    found = candidates(config, graph, on, known)
    foreign = [] if cluster else _foreign(config, known, path)
    for warning in (*warnings, *foreign):
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(_as_dict(on, graph, found), indent=2))
    elif as_yaml:
        _print_yaml(found)
    else:
        _print_plans(on, graph, found)


def _cluster(config: RunConfig, file: Path | None) -> Cluster:
    from rlinf_core.cluster.files import read_cluster
    from rlinf_core.run.machines import find_cluster

    if file is None:
        return find_cluster(config)
    if config.ranks:
        raise ConfigError(
            f"ranks: {config.ranks} counts devices of this machine, but --cluster {file} has others; drop one"
        )
    return read_cluster(file)


def _foreign(config: RunConfig, profile: Profile, path: Path) -> list[str]:
    """A warning where the profile is that of another machine, model or task."""
    from rlinf_core.run.planning import run_fingerprint
    from rlinf_core.schedule.profile import check_fingerprint

    try:
        check_fingerprint(profile, run_fingerprint(config), str(path))
    except ConfigError as err:
        return [str(err)]
    return []


def _print_yaml(found: SearchResult) -> None:
    from rlinf_core.schedule.plan_yaml import plan_to_yaml

    typer.echo(plan_to_yaml(found.best), nl=False)


def _print_plans(cluster: Cluster, graph: Graph, found: SearchResult) -> None:
    """Piped, a line each; on a terminal the reasons stand below the table."""
    typer.echo(_headline(cluster, graph), err=True)
    rows = [_row(number, each) for number, each in enumerate(found.candidates, 1)]
    if sys.stdout.isatty():
        print_table(HEADS[:-1], [row[:-1] for row in rows])
        for number, *_, reason in rows:
            if reason:
                typer.echo(f"{number}  {reason}")
    else:
        print_table(HEADS, rows)
    for mode, reason in found.missing.items():
        typer.echo(f"no {mode} plan: {reason}", err=True)


def _headline(cluster: Cluster, graph: Graph) -> str:
    counts = ", ".join(f"{cluster.count(kind)} x {kind}" for kind in cluster.types)
    flow = " > ".join(part.name for part in graph.components)
    nodes = f"{len(cluster.nodes)} node{'s' if len(cluster.nodes) > 1 else ''}"
    ahead = ", made ahead of their training," if graph.ahead else ""
    return f"{flow}: {graph.samples} samples a step{ahead} on {counts} ({nodes})"


def _row(number: int, candidate: Candidate) -> tuple[str, ...]:
    from rlinf_core.schedule.reasons import placement_text

    plan, simulation = candidate.plan, candidate.simulation
    need = plan.prediction.memory_bytes if plan.prediction else 0.0
    return (
        str(number),
        plan.mode,
        f"{simulation.step_s:.3g} s" if simulation.step_s < 100 else f"{simulation.step_s:.0f} s",
        f"{simulation.bubble_ratio:.0%}",
        f"{need / GIB:.1f} GiB" if need else "-",
        placement_text(plan),
        candidate.reason,
    )


def _as_dict(cluster: Cluster, graph: Graph, found: SearchResult) -> dict[str, Any]:  # Any: JSON values
    devices = {kind: cluster.count(kind) for kind in cluster.types}
    return {
        "cluster": {"nodes": len(cluster.nodes), "devices": devices},
        "samples": graph.samples,
        "plans": [_plan_dict(each) for each in found.candidates],
        "missing": found.missing,
    }


def _plan_dict(candidate: Candidate) -> dict[str, Any]:  # Any: JSON values
    plan, simulation = candidate.plan, candidate.simulation
    return {
        "mode": plan.mode,
        "step_s": simulation.step_s,
        "bubble_ratio": simulation.bubble_ratio,
        "memory_bytes": plan.prediction.memory_bytes if plan.prediction else 0.0,
        "busy_s": dict(simulation.busy_s),
        "stages": plan.stages,
        "components": {
            name: {
                "devices": list(part.devices),
                "chunk": part.chunk,
                "resident": part.resident,
                "model_parallel": part.model_parallel,
            }
            for name, part in plan.assignments.items()
        },
        "reason": candidate.reason,
    }
