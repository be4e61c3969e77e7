"""Workers, and groups of them: what runs in other processes and how the driver calls it."""

from rlinf_core.worker.group import GroupCall, WorkerGroup
from rlinf_core.worker.worker import Worker, WorkerContext, on_host, stage

__all__ = ["GroupCall", "Worker", "WorkerContext", "WorkerGroup", "on_host", "stage"]
