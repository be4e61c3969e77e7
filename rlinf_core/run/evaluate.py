"""Validation on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_core.types import Experience, Trajectory


def eval_metrics(rows: Sequence[Experience], primary: str) -> dict[str, float]:
    """Metrics `eval/...` of evaluation rows, means over those that could be scored.

    `eval/accuracy` is the mean of the first reward (`primary`) before weighting; for episodes there is
    `eval/success` instead, the share that succeeded.
    """
    scored = [row for row in rows if row.error is None and row.reward is not None]
    metrics = {"eval/samples": float(len(rows)), "eval/unscored": float(len(rows) - len(scored))}
    if scored:
        count = len(scored)
        episodes = [row for row in scored if isinstance(row, Trajectory)]
        if episodes:
            metrics["eval/success"] = sum(episode.success for episode in episodes) / count
        else:
            metrics["eval/accuracy"] = sum(row.reward_parts.get(primary, 0.0) for row in scored) / count
        metrics["eval/reward"] = sum(float(row.reward or 0.0) for row in scored) / count
        metrics["eval/response_length"] = sum(row.length for row in scored) / count
        metrics["eval/truncated"] = sum(row.finish == "length" for row in scored) / count
    return metrics
