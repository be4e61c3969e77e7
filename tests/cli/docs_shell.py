"""A folder in which the commands, programs and files of a page are tried, one after the other."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest
import yaml
from docs_blocks import ELSEWHERE, NOT_RUN, NOT_TRAINED, ROOT, SHELL, SLOW, Block, Command

from rlinf_core.cli.app import main

TRAINS = ("rlinf train", "rlinf sft")
OF_RUNS = ("rlinf export", "rlinf eval", "rlinf compare", "rlinf report", "rlinf replay")
OF_TEXT = "sampling.max_new_tokens=4"
SHORT = (
    "train.steps=1 train.prompts_per_step=4 warm_start.steps=0 eval.samples=4 eval.every=0 "
    f"{OF_TEXT} engine=inline ranks=1"
)
APART = SHORT.replace("engine=inline ranks=1", "ranks=2")  # of runs on several devices
PLACED = re.compile(r"--mode|--ranks [2-9]|\b(mode|placement|plan)\b[.=]")
END_S = 5.0  # that processes have to end in after the last command
RECIPES = ROOT / "rlinf_core/config/recipes"
NO_WORDS = re.compile(r"[|><$;&*~]|\w:\w")  # for a shell, or a function that would be imported here
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
    """Runs what a page shows in a folder that has what pages take for granted; `train` is for slow tests."""

    def __init__(self, folder: Path, model: Path, train: bool) -> None:
        self.folder, self.site, self.train = folder, folder / "site", train
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
                if self._wanted(command.mark):
                    self._command(command)
        elif self._wanted(block.mark()):
            if block.language == "yaml" and not (block.title and block.title in self._typed):
                self._accept(block)
            elif block.language == "python" and not block.title:
                self._python(block)

    def _wanted(self, mark: str) -> bool:
        return mark not in (NOT_RUN, ELSEWHERE) and (self.train or mark != SLOW)

    def _command(self, command: Command) -> None:
        """Run it, and compare what it prints; where nothing is trained, training is composed and checked."""
        refused = any(line.startswith("error:") for line in command.expected)
        train = self.train and command.mark != NOT_TRAINED
        text = command.text
        if not refused and text.startswith((*TRAINS, *OF_RUNS)):
            runs = _runs_before(text)
            if runs and not train:
                return
            for run in runs:
                self._ensure_run(run)
            if not train:
                text = text.replace("rlinf train", "rlinf config show", 1)
                text = text.replace("rlinf sft", "rlinf config show --algo sft", 1)
                command = Command(text)
        done = self._shell(text if refused else as_run(text, self))
        told = done.stdout + done.stderr
        assert done.returncode == (2 if refused else 0), (
            f"$ {text}\n{done.stderr[-3000:]}{done.stdout[-500:]}"
        )
        for line in command.expected:
            pattern = ".*".join(re.escape(part) for part in line.rstrip().split("..."))
            assert re.search(rf"^{pattern}$", told, re.MULTILINE), f"$ {text}\nno {line!r} in\n{told}"

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
        done = self._shell(how)
        assert done.returncode == 0, f"{block.page}:{block.line}: {how}\n{done.stderr[-4000:]}"

    def _python(self, block: Block) -> None:
        path = f"block_{block.line}.py"
        self.write(path, block.body)
        done = self._shell(f"python {path}")
        assert done.returncode == 0, f"{block.page}:{block.line}\n{done.stdout}{done.stderr[-4000:]}"
        for line in re.findall(r"print\(.*\)  # (\S.*)$", block.body, re.MULTILINE):
            assert line in done.stdout.splitlines(), f"{block.page}:{block.line} prints\n{done.stdout}"

    def embodied(self, text: str) -> bool:
        """Whether a command trains in a simulator."""
        named = [self.folder / name for name in re.findall(r"[\w./-]+\.yaml", text)]
        named += [RECIPES / f"{name}.yaml" for name in re.findall(r"--recipe (\S+)", text)]
        settings = [path.read_text() for path in named if path.exists()]
        return "--simulator" in text or any(re.search("^simulator:", each, re.MULTILINE) for each in settings)

    def _ensure_run(self, output: str) -> None:
        if not (self.folder / output).exists():
            done = self._shell(f"rlinf train --output {output} {SHORT}")
            assert done.returncode == 0, done.stderr

    def _shell(self, text: str) -> subprocess.CompletedProcess[str]:
        if text.startswith("rlinf config show ") and not self.site.exists() and not NO_WORDS.search(text):
            return _composed(shlex.split(text), self.folder)
        own = [str(self.site), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(own),
            "HOME": str(self.folder),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "COLUMNS": "100",
        }
        return subprocess.run(
            ["bash", "-c", text],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment,
            timeout=300,
            check=False,
        )


def _composed(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """`rlinf config show` in this process, which saves starting one."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr("sys.argv", words)
        try:
            main()
        except SystemExit as end:
            code = int(str(end.code or 0))
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def _of_home(folder: Path) -> dict[int, str]:
    """Process id -> command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):  # none where a system has no such files
        with suppress(OSError):
            if f"HOME={folder}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return found


def _runs_before(text: str) -> list[str]:
    """The folders of runs that have to be there."""
    if text.startswith(OF_RUNS):
        return [each for each in re.sub(r"(?:--output|-o) \S+", "", text).split() if each.startswith("runs/")]
    return re.findall(r"--resume (\S+)", text)


def as_run(text: str, shell: Shell) -> str:
    """What the shell gets: the command as typed, but for installing and training."""
    if text.startswith("pip install -e "):
        options = f"-q --no-deps --no-build-isolation --target {shell.site}"
        return f"{sys.executable} -m pip install {options} {text.removeprefix('pip install -e ')}"
    if text.startswith("rlinf eval"):
        return f"{text} engine=inline ranks=1"
    if text.startswith("pytest "):
        return f"{sys.executable} -m {text} -q -p no:cacheprovider -c /dev/null --rootdir ."
    if text.startswith(TRAINS):
        short = APART if PLACED.search(text) else SHORT
        if shell.embodied(text):
            short = short.replace(f" {OF_TEXT}", "")
        if "--algo dapo" in text:  # takes groups that differ only: a model that never succeeds has none
            short += " warm_start.steps=100 train.prompts_per_step=1 sampling.max_new_tokens=8"
        if "train.mini_batches" not in text:
            short += " train.mini_batches=1"
        return f"{text} {'train.steps=2' if '--resume' in text else short}"
    return text
