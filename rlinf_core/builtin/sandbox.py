"""Runs programs that a model wrote, each in a process with few rights that is killed when it takes long."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlinf_core.errors import ConfigError

PROGRAM = Path(__file__).with_name("sandbox_program.py")
FILE_BYTES = 1 << 20  # of each file that a program writes, its output too
_SHOWN = 400  # characters of what it complained about


@dataclass(frozen=True)
class Ran:
    """How a program ended. `whole`: it came to its end, and nothing that it did says so in its place."""

    whole: bool
    output: str
    complaint: str = ""  # the end of its standard error, or that it took too long
    late: bool = False


class Sandbox:
    """Makes each program a process of its own, without network, other processes, or files of others."""

    def __init__(self, memory_mb: int) -> None:
        self._memory_bytes = memory_mb << 20

    def check(self, what: str) -> None:
        """Raise `ConfigError` for `what` where the system cannot shut programs in."""
        ran = self.run(["print(6 * 7)"], timeout_s=60.0)
        if not (ran.whole and ran.output == "42\n"):
            raise ConfigError(
                f"{what}: programs of the model cannot be run here without rights: it takes Linux 5.13 "
                "or later with Landlock and seccomp, on x86-64 or ARM, and enough memory_mb: "
                f"{ran.complaint}"
            )

    def run(self, programs: Sequence[str], *, timeout_s: float, given: str = "") -> Ran:
        """One after the other in one namespace, with this standard input."""
        with tempfile.TemporaryDirectory(prefix="rlinf-code-") as folder, tempfile.TemporaryFile() as output:
            seen, proof = os.pipe()
            try:
                return self._run(programs, timeout_s, given, Path(folder), output.fileno(), seen, proof)
            finally:
                os.close(seen)

    def _run(
        self,
        programs: Sequence[str],
        timeout_s: float,
        given: str,
        folder: Path,
        output: int,
        seen: int,
        proof: int,
    ) -> Ran:
        secret = secrets.token_hex(16)
        told = {
            "programs": list(programs),
            "seconds": max(1, round(timeout_s + 0.5)),
            "memory_bytes": self._memory_bytes,
            "file_bytes": FILE_BYTES,
            "descriptor": proof,
            "secret": secret,
        }
        errors, order = folder / "errors", folder / "order"
        order.write_text(json.dumps(told))
        (folder / "given").write_text(given, encoding="utf-8", errors="replace")
        with errors.open("wb") as complaints, (folder / "given").open("rb") as source:
            process = subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM), str(order)],
                stdin=source,
                stdout=output,
                stderr=complaints,
                pass_fds=(proof,),
                cwd=folder,
                env={"PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1", "HOME": str(folder)},
                start_new_session=True,
            )
        os.close(proof)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return Ran(False, "", f"it took longer than {timeout_s:g} s", late=True)
        whole = os.read(seen, 256).decode(errors="replace") == secret
        said = os.pread(output, FILE_BYTES, 0).decode(errors="replace")
        return Ran(whole, said, errors.read_text(errors="replace")[-_SHOWN:].strip())
