"""Weights and adapters on their way into SGLang's processes, and what these say is installed."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_backend_sglang.arguments import LOADER
from rlinf_backend_sglang.loader import REPORT
from rlinf_core.errors import ModelError
from rlinf_core.isolated_rollout.adapters import AdapterFolders
from rlinf_core.isolated_rollout.engine import Installed

if TYPE_CHECKING:
    from rlinf_backend_sglang.release import Release
    from rlinf_core.isolated_rollout.buckets import Bucket
    from rlinf_core.isolated_rollout.engine import Setup

IDLE_S = 30.0  # that SGLang may take until it has noticed that no request is left
REPORT_S = 60.0  # that its processes may take for digests
_LOOK_S = 0.01


class Updates:
    """One update after the other; one that broke off is gone on with by the next."""

    def __init__(self, engine: Any, release: Release, setup: Setup, processes: int) -> None:  # Any: SGLang's
        self.engine = engine
        self.release = release
        self.processes = processes
        self.adapter: str | None = None  # that requests are answered with
        self._folder = Path(setup.folder)
        self._adapters = AdapterFolders(setup.folder, setup.lora)
        self._open = False

    def load(self, bucket: Bucket) -> None:
        """Install it in every process; adapters are kept until all are there."""
        self._begin()
        self._send({"bucket": bucket.to_plain()}, flush=False)
        self._adapters.keep(bucket.tensors())

    def finish(self) -> list[Installed]:
        """No cache of older weights, digests over all processes, and new adapters."""
        self._begin()
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            self._send({"report": folder}, flush=True)
            found = self._collect(Path(folder))
        self.release.end_update(self.engine)
        self._open = False
        self._install_adapter()
        return found

    def settle(self) -> None:
        """Wait until SGLang is idle, which it is a step after the last response, and empty its cache. Raises
        `ModelError` if it does not become idle."""
        end = time.monotonic() + IDLE_S
        while not self.engine.flush_cache().success:
            if time.monotonic() >= end:
                raise ModelError(f"rollout sglang: requests still run {IDLE_S:g} s after all were ended")
            time.sleep(_LOOK_S)

    def _begin(self) -> None:
        if not self._open:
            self.settle()
            self.release.begin_update(self.engine)
            self._open = True

    def _send(self, what: dict[str, Any], *, flush: bool) -> None:  # Any: plain values
        import torch

        success, message = self.engine.update_weights_from_tensor(
            named_tensors=[(json.dumps(what), torch.empty(0))], load_format=LOADER, flush_cache=flush
        )
        if not success:
            raise ModelError(f"rollout sglang: SGLang does not take new weights: {message}")

    def _collect(self, folder: Path) -> list[Installed]:
        """Processes that share a layer hold parts of its weights, or all of them."""
        end = time.monotonic() + REPORT_S
        while len(files := list(folder.glob(REPORT))) < self.processes:
            if time.monotonic() >= end:
                raise ModelError(
                    f"rollout sglang: {len(files)} of {self.processes} processes told in {REPORT_S:g} s what "
                    "weights they have"
                )
            time.sleep(_LOOK_S)
        totals: dict[tuple[str, ...], list[int]] = {}
        for file in files:
            for names, digest in json.loads(file.read_text()):
                totals.setdefault(tuple(names), []).append(digest)
        return [Installed(names, sum(digests) % 2**64, len(digests)) for names, digests in totals.items()]

    def _install_adapter(self) -> None:
        """Load what was kept, and give up the one before."""
        folder = self._adapters.write()
        if folder is None:
            return
        before, self.adapter = self.adapter, f"policy-{self._adapters.number}"
        loaded = self.engine.load_lora_adapter(lora_name=self.adapter, lora_path=str(folder))
        if not loaded.success:
            raise ModelError(f"rollout sglang: SGLang does not take an adapter: {loaded.error_message}")
        if before is not None:
            self.engine.unload_lora_adapter(lora_name=before)
        shutil.rmtree(folder)
