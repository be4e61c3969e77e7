"""A folder in which the commands, programs and files of a page are tried, one after the other."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import yaml
from docs_blocks import ELSEWHERE, NIGHTLY, NOT_RUN, NOT_TRAINED, ROOT, SHELL, Block, Command
from docs_runs import OF_RUNS, TRAINS, composed, output_of, runs_before, shortened
from docs_warm import DEADLINE_S, Warm, takes

END_S = 5.0  # that processes have to end in after the last command
FOR_A_SHELL = re.compile(r"[|><$;&*~]")
LENT = ("recipes", "plugins")  # folders of a checkout that pages name

RECIPE = "model: ./my-model\ndata: problems.jsonl\nreward: exact\n"
CLUSTER = "nodes: [{count: 4, devices: 8}]\n"
PROFILE = (
    "components:\n  rollout: {curves: [{per_sample_s: 0.5}]}\n  actor: {curves: [{per_sample_s: 0.25}]}\n"
)
SCORE = "def score(responses, **_):\n    return [float(len(each)) for each in responses]\n"
TAKEN_FOR_GRANTED = {
    "problems.jsonl": "".join(
        json.dumps({"prompt": f"{n}+{n + 1}=", "answer": str(2 * n + 1)}) + "\n" for n in range(40)
    ),
    "recipe.yaml": RECIPE,
    "cluster.yaml": CLUSTER,
    "profile.yaml": PROFILE,
    "my_package/my_module.py": SCORE,
    "my_rewards.py": SCORE,
    "code/.keep": "",
}


class Shell:
    """Runs what a page shows in a folder that has what pages take for granted; without `warm` each command is
    a new process, and what is marked nightly runs as well."""

    def __init__(self, folder: Path, model: Path, warm: Warm | None) -> None:
        self.folder, self.site, self.warm = folder, folder / "site", warm
        shutil.copytree(model, folder / "my-model")
        for path, content in TAKEN_FOR_GRANTED.items():
            self.write(path, content)
        for name in LENT:
            (folder / name).symlink_to(ROOT / name)

    def write(self, path: str, content: str) -> None:
        """A file of the page."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def try_page(self, blocks: list[Block]) -> None:
        """Everything in its order; then no process that a command started may be there any more."""
        shown = [block for block in blocks if block.language in SHELL and not block.title]
        self._typed = "\n".join(block.body for block in shown if self._wanted(block.mark()))
        try:
            for block in blocks:
                self._try(block)
        finally:
            left = self._left()
        assert not left, f"these are left, and were killed: {left}"

    def _left(self) -> list[str]:
        """Command lines of processes whose home is this folder, after they had time to end; kills them."""
        end = time.monotonic() + END_S
        while (found := _of_home(self.folder)) and time.monotonic() < end:
            time.sleep(0.1)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return list(found.values())

    def _try(self, block: Block) -> None:
        """Whatever it is: run it, write it, or have it accepted, unless a command takes it."""
        if block.title:
            self.write(block.title, block.body)
        if block.language in SHELL and not block.title:
            for command in block.commands():
                if command.mark not in (NOT_RUN, ELSEWHERE):
                    self._command(command)
        elif self._wanted(block.mark()):
            if block.language == "yaml" and not (block.title and block.title in self._typed):
                self._accept(block)
            elif block.language == "python" and not block.title:
                self._python(block)

    def _wanted(self, mark: str) -> bool:
        return mark not in (NOT_RUN, ELSEWHERE) and not (mark == NIGHTLY and self.warm)

    def _command(self, command: Command) -> None:
        """Run it, cut short if it trains, after its settings as they are were checked."""
        text, expected = command.text, command.expected
        refused = any(line.startswith("error:") for line in expected)
        trains = text.startswith(TRAINS) and not refused
        if trains and not runs_before(text):
            self._run(composed(text))
        not_trained = command.mark == NOT_TRAINED and text.startswith((*TRAINS, *OF_RUNS))
        if not_trained or not self._wanted(command.mark):
            return
        if not refused:
            for run in runs_before(text):
                self._ensure_run(run)
            text = self._installed(self._short(text))
        told = self._run(text, fails=refused)
        assert not trains or list(self.folder.glob(f"{output_of(text)}/metrics.jsonl")), f"no record: {text}"
        for line in expected:
            pattern = ".*".join(re.escape(part) for part in line.rstrip().split("..."))
            assert re.search(rf"^{pattern}$", told, re.MULTILINE), f"$ {text}\nno {line!r} in\n{told}"

    def _short(self, text: str) -> str:
        return shortened(text, self.folder, inline=self.warm is not None)

    def _installed(self, text: str) -> str:
        """A command that installs or checks the page's own package, for this folder."""
        if text.startswith("pip install -e "):
            options = f"-q --no-deps --no-build-isolation --target {self.site}"
            package = text.removeprefix("pip install -e ").removesuffix(" pytest")  # which is here
            return f"{sys.executable} -m pip install {options} {package}"
        if text.startswith("pytest "):
            return f"{text} -q -p no:cacheprovider -c /dev/null --rootdir ."
        return text

    def _accept(self, block: Block) -> None:
        """A plan, what was measured, a cluster, or settings of a run."""
        path = block.title or f"block-{block.line}.yaml"
        self.write(path, block.body)
        keys = yaml.safe_load(block.body) or {}
        if "nodes" in keys:
            how = f"rlinf plan -c recipe.yaml --profile profile.yaml --cluster {path}"
        elif "components" in keys:
            planned = any("devices" in part for part in keys["components"].values())
            reader = "plan_yaml import plan_from_yaml" if planned else "profile_yaml import profile_from_yaml"
            how = f"python -c 'from rlinf_core.schedule.{reader} as r; r(open(\"{path}\").read())'"
        else:
            how = f"rlinf config show {'' if 'simulator' in keys else '--recipe quickstart'} -c {path}"
        self._run(how)

    def _python(self, block: Block) -> None:
        path = f"block_{block.line}.py"
        self.write(path, block.body)
        told = self._run(f"python {path}")
        for line in re.findall(r"print\(.*\)  # (\S.*)$", block.body, re.MULTILINE):
            assert line in told.splitlines(), f"{block.page}:{block.line} prints\n{told}"

    def _ensure_run(self, output: str) -> None:
        if not (self.folder / output).exists():
            self._run(self._short(f"rlinf train --output {output}"))

    def _run(self, text: str, *, fails: bool = False) -> str:
        """What it printed; asserts that it ends well, or as by a mistake."""
        done = self._shell(text)
        told = f"$ {text}\n{done.stderr[-4000:]}{done.stdout[-1000:]}"
        assert done.returncode == (2 if fails else 0), told
        return done.stdout + done.stderr

    def _shell(self, text: str) -> subprocess.CompletedProcess[str]:
        own = [str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **environment_of_pages(),
            "PYTHONPATH": os.pathsep.join(own),
            "HOME": str(self.folder),
        }
        if self.warm and not FOR_A_SHELL.search(text) and takes(words := shlex.split(text)):
            return self.warm.run(words, self.folder, environment)
        return subprocess.run(
            ["bash", "-c", text],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment,
            timeout=DEADLINE_S,
            check=False,
        )


def environment_of_pages() -> dict[str, str]:
    """Variables of every command."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "COLUMNS": "100",
    }


def _of_home(folder: Path) -> dict[int, str]:
    """Process id -> command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):  # none where a system has no such files
        with suppress(OSError):
            if f"HOME={folder}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return found
