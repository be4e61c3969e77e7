"""What a flow is: the training loop of one step, written once over workers and streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlinf_core.comm.stream import Stream
from rlinf_core.policies import of_policy, other_names
from rlinf_core.types import Experience, Sample, Trajectory

if TYPE_CHECKING:
    from rlinf_core.flows.learning import Learners
    from rlinf_core.roles.report import TrainReport
    from rlinf_core.roles.weight_sync import WeightSync
    from rlinf_core.worker import WorkerGroup


@dataclass
class StepResult:
    """What one step produced: its rows, its metrics, and warnings for a person."""

    rows: list[Experience]
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass
class Played:
    """The rows of one step before anything is trained on them."""

    rows: list[Experience]  # in order
    kept: list[Experience]  # of them, those to train on
    metrics: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)  # see `Flow.counts`


class Requests:
    """What one step may ask its rollout for: groups of requests, one a chunk.

    `draw(asked, count)` makes `count` groups, of which `asked` came before in this step.
    """

    def __init__(self, draw: Callable[[int, int], Iterable[list[Any]]], groups: int) -> None:
        self._draw = draw
        self._groups = groups
        self._asked = 0

    def first(self) -> Stream:
        """As many groups as a step trains on."""
        return self.more(self._groups)

    def more(self, count: int) -> Stream:
        """So many groups that this step did not ask for before."""
        asked, self._asked = self._asked, self._asked + count
        return Stream.of(self._draw(asked, count))

    def with_first(self, change: Callable[[Iterable[list[Any]]], Iterable[list[Any]]]) -> Requests:
        """The same, with a change of the first groups."""

        def draw(asked: int, count: int) -> Iterable[list[Any]]:
            drawn = self._draw(asked, count)
            return drawn if asked else change(drawn)

        return Requests(draw, self._groups)


class Flow(ABC):
    """A training flow over worker groups.

    `step` may overlap what makes rows with what trains on them. `play` and `train` are its two halves, for
    rows that are made some steps ahead; where the flow is `apart`, one thread may play while another trains.
    """

    sync: WeightSync  # from what is trained to what plays
    learners: Learners  # at its end

    @property
    @abstractmethod
    def apart(self) -> bool:
        """Whether nothing that plays shares a process with what is trained."""

    @abstractmethod
    def step(self, requests: Requests, step: int) -> StepResult:
        """One step of training."""

    @abstractmethod
    def play(self, requests: Requests) -> Played:
        """A step's rows, by the weights that those who play have now."""

    @abstractmethod
    def train(self, played: Played, step: int, oldest: int) -> StepResult:
        """Train on these rows, but for those of weights before the version `oldest`."""

    @abstractmethod
    def evaluate(self, requests: Stream) -> list[Experience]:
        """Rows of the current policy, scored, without training."""

    def counts(self) -> dict[str, float]:
        """Of what has happened since this was asked last, in steps and in evaluations; they add up."""
        return {}


def work_apart(learner: WorkerGroup, *players: WorkerGroup) -> bool:
    """Whether a group can train while others play: no process has both, and the engine's work at one time."""
    playing = [host for group in players for host, _ in group.members]
    training = [host for host, _ in learner.members]
    shared = {id(host) for host in playing} & {id(host) for host in training}
    return not shared and all(host.concurrent for host in (*playing, *training))


def keep_in(rows: list[Experience]) -> Callable[[list[Experience]], list[Experience]]:
    """A function for `Stream.map` that passes chunks on and keeps their rows in a list."""

    def keep(chunk: list[Experience]) -> list[Experience]:
        rows.extend(chunk)
        return chunk

    return keep


def merge_reports(reports: Sequence[TrainReport]) -> dict[str, float]:
    """Metrics of one step from every rank's report, named `train/...`."""
    sums: dict[str, list[float]] = {}
    for report in reports:
        for name, (total, count) in report.sums.items():
            held = sums.setdefault(name, [0.0, 0.0])
            held[0] += total
            held[1] += count
    merged = {name: total / count for name, (total, count) in sums.items() if count}
    merged.update(reports[0].facts)
    for report in reports:
        for name, peak in report.peaks.items():
            merged[name] = max(merged.get(name, 0.0), peak)
    return {f"train/{name}": value for name, value in merged.items()}


def row_metrics(rows: Sequence[Experience]) -> dict[str, float]:
    """Statistics of the generated rows, named `train/...`; rows that could not be scored are apart. Those of
    policies beside the run's own are named `train/POLICY/...`."""
    metrics = _row_metrics(rows)
    for name in other_names(rows):
        of_it = _row_metrics(of_policy(rows, name))
        metrics |= {f"train/{name}/{key.removeprefix('train/')}": value for key, value in of_it.items()}
    return metrics


def _row_metrics(rows: Sequence[Experience]) -> dict[str, float]:
    scored = [row for row in rows if row.error is None and row.reward is not None]
    metrics = {"train/unscored": float(len(rows) - len(scored)), "train/samples": float(len(rows))}
    if not scored:
        return metrics
    rewards = [float(row.reward or 0.0) for row in scored]
    lengths = [row.length for row in scored]
    mean = sum(rewards) / len(rewards)
    metrics["train/reward"] = mean
    metrics["train/reward_std"] = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
    metrics["train/response_length"] = sum(lengths) / len(lengths)
    metrics["train/response_length_max"] = float(max(lengths))
    metrics["train/truncated"] = sum(row.finish == "length" for row in scored) / len(scored)
    calls = [row for row in scored if isinstance(row, Sample) and row.tool_calls is not None]
    if calls:
        made = sum(row.tool_calls or 0 for row in calls)
        metrics["train/tool_calls"] = made / len(calls)
        metrics["train/tool_errors"] = sum(row.tool_errors for row in calls) / max(1, made)
    greedy = {row.group: row.baseline for row in scored if row.baseline is not None}
    if greedy:
        metrics["train/greedy_reward"] = sum(greedy.values()) / len(greedy)
    for part in sorted({name for row in scored for name in row.reward_parts}):
        values = [row.reward_parts[part] for row in scored if part in row.reward_parts]
        metrics[f"train/reward_{part}"] = sum(values) / len(values)
    return metrics


def warnings(metrics: Mapping[str, float]) -> list[str]:
    """What a person should know of a step."""
    found = []
    if metrics.get("train/zero_variance_groups", 0.0) == 1.0:
        found.append("every group has equal rewards: this step had no gradient (task too easy or too hard?)")
    if metrics.get("train/logprob_mismatch", 0.0) > 0.05:
        found.append(
            "log-probabilities of rollout and of training differ by "
            f"{metrics['train/logprob_mismatch']:.3f} a decision"
        )
    skipped = metrics.get("train/skipped_steps", 0.0) + metrics.get("train/critic_skipped_steps", 0.0)
    if skipped:
        found.append(
            f"optimizer steps left out because a loss or a gradient was not finite: {skipped:.0f} "
            "(RUN/not-finite has the rows)"
        )
    if metrics.get("train/stale_rows", 0.0) > 0.0:
        found.append(
            f"{metrics['train/stale_rows']:.0f} samples of weights older than train.max_staleness allows "
            "were not trained"
        )
    return found


def record(row: Experience) -> Mapping[str, Any]:  # Any: JSON values
    """A row as a JSON-able record for the sample log."""
    base: dict[str, Any] = {
        "group": row.group,
        "replica": row.replica,
        "reward": row.reward,
        "reward_parts": row.reward_parts,
        "length": row.length,
        "finish": row.finish,
        "weight_version": row.weight_version,
    }
    prompt = getattr(row, "prompt", None)
    if prompt is not None:
        base |= {"prompt": prompt.text, "response": getattr(row, "text", ""), "answer": prompt.answer}
    if isinstance(row, Sample) and row.others:
        base["others"] = {name: record(each) for name, each in row.others.items()}
    if isinstance(row, Trajectory):
        base |= {"success": row.success, "truncated": row.truncated}
    if row.error is not None:
        base["error"] = row.error
    return base
