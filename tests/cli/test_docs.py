"""The pages keep their word: their commands run as typed, and every command and flag is on its page.

Commands of ```` ```bash ```` blocks and of lines that start with `$ ` in ```` ```console ```` blocks run in
the order of the page, in a folder with the files that pages take for granted. Lines below a `$ ` line are
its expected output, `...` standing for anything. A block with a title is a file of that name.

Training is composed and checked by `rlinf config show` in place of `rlinf train`, and what needs a run that
was trained is left out; the slow tests train, cut short by settings added at the end, unless a command needs
a model hub. What `make` and `pip install` of this repository do is tested where environments are built; a
page's own package is installed into a folder on the path.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click import Group
from typer.main import get_command

from rlinf_core.cli.app import app
from rlinf_core.cli.options import SHARED
from rlinf_core.plugins import plugins

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("index", "cli", "configuration", "data-and-rewards", "modes"),
            *("plugin-algorithm", "plugin-reward", "plugin-simulator", "plugin-dataset", "plugin-tracker"),
            *("checkpoints", "report", "sft", "lora", "elastic"),
            "evaluation",
            "plugin-contracts",
            "trackers",
            "algorithms",
            *("algorithms-grpo", "algorithms-dapo", "algorithms-ppo", "algorithms-reinforce-pp"),
        )
    ),
]
UNTRAINED = ("docs/configuration.md", "docs/plugin-contracts.md", "docs/elastic.md")
SKIPPED = {  # start of a command -> why it is not run here
    "make ": "sets up and uses an environment of its own, usually the one that runs these tests",
    "rlinf plugins install ": "downloads what simulators need; their tests build such environments",
    "rlinf watch ": "serves until it is stopped; the tests of reports ask it for its page",
    "rlinf scale ": "asks a run that goes on; the tests of scaling have one",
    'pip install ".[': "`make train` and the tests of third-party plugins install the bundles",
}
TRAINS = ("rlinf train", "rlinf sft")
HUB = "Qwen/"
OF_TEXT = "sampling.max_new_tokens=4"
SHORT = (
    "train.steps=1 train.prompts_per_step=4 warm_start.steps=0 eval.samples=4 eval.every=0 "
    f"{OF_TEXT} engine=inline ranks=1"
)
APART = SHORT.replace("engine=inline ranks=1", "ranks=2")  # of runs on several devices
PLACED = re.compile(r"--mode|--ranks [2-9]|\b(mode|placement|plan)\b[.=]")
RECIPE = "model: ./my-model\ndata: problems.jsonl\nreward: exact\n"
CLUSTER = "nodes: [{count: 4, devices: 8}]\n"
PROFILE = (
    "components:\n  rollout: {curves: [{per_sample_s: 0.5}]}\n  actor: {curves: [{per_sample_s: 0.25}]}\n"
)
RESUME = re.compile(r"(?:--resume|rlinf (?:export|eval|compare|report)) ([^-\s]\S*)")
OF_RUNS = ("rlinf export", "rlinf eval", "rlinf compare", "rlinf report")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)


@dataclass
class Command:
    """One command of a page with the output that the page shows below it."""

    text: str
    expected: list[str] = field(default_factory=list)


def parts_of(page: str) -> Iterator[Command | tuple[str, str]]:
    """Commands, and `(path, content)` of files, in the order of the page."""
    for language, title, body in BLOCK.findall(page):
        if title:
            yield title, body
        elif language == "bash":
            yield from (Command(line) for line in map(_without_comment, body.splitlines()) if line)
        elif language == "console":
            yield from _console(body)


def _console(body: str) -> list[Command]:
    commands: list[Command] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            commands.append(Command(_without_comment(line[2:])))
        elif line.strip():
            commands[-1].expected.append(line)
    return commands


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s+)#\s.*$", "", line).strip()


def as_run(text: str, site: Path) -> str:
    """What the shell gets: the command as typed, but for installing and training."""
    if text.startswith("pip install -e "):
        options = f"-q --no-deps --no-build-isolation --target {site}"
        return f"{sys.executable} -m pip install {options} {text.removeprefix('pip install -e ')}"
    if text.startswith("rlinf eval"):
        return f"{text} engine=inline ranks=1"
    if text.startswith("pytest "):
        return f"{sys.executable} -m {text} -q -p no:cacheprovider -c /dev/null --rootdir ."
    if text.startswith(TRAINS):
        short = APART if PLACED.search(text) else SHORT
        if "--simulator" in text:
            short = short.replace(f" {OF_TEXT}", "")
        if "--algo dapo" in text:  # takes groups that differ only: a model that never succeeds has none
            short += " warm_start.steps=100 train.prompts_per_step=1 sampling.max_new_tokens=8"
        return f"{text} {'train.steps=2' if RESUME.search(text) else short}"
    return text


def _needs_hub(text: str, folder: Path) -> bool:
    named = [folder / name for name in re.findall(r"[\w./-]+\.yaml", text)]
    return HUB in text or any(HUB in path.read_text() for path in named if path.exists())


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny model as `save_pretrained` would leave it."""
    spec = plugins().get("models", "hf_lm")
    made = spec.load()(spec.config(preset="tiny-qwen2"))
    path = tmp_path_factory.mktemp("model") / "my-model"
    made.export(iter(made.module(0).state_dict().items()), path)
    return path


class Shell:
    """Runs commands in a folder that has what pages take for granted."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.site = folder, folder / "site"
        shutil.copytree(model, folder / "my-model")
        rows = [{"prompt": f"{n}+{n + 1}=", "answer": str(2 * n + 1)} for n in range(40)]
        (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "recipe.yaml").write_text(RECIPE)
        (folder / "cluster.yaml").write_text(CLUSTER)
        (folder / "profile.yaml").write_text(PROFILE)
        (folder / "code").mkdir()
        (folder / "my_package").mkdir()
        score = "def score(responses, **_):\n    return [float(len(each)) for each in responses]\n"
        (folder / "my_package/my_module.py").write_text(score)
        (folder / "my_rewards.py").write_text(score)

    def write(self, path: str, content: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    def run(self, command: Command, train: bool) -> None:
        """Run it, and compare what it prints; without `train`, training is composed and checked only."""
        refused = any(line.startswith("error:") for line in command.expected)
        text = command.text if refused else as_run(command.text, self.site)
        if not refused and text.startswith((*TRAINS, *OF_RUNS)):
            resumed = RESUME.search(text)
            if resumed and not train:
                return
            if resumed:
                self._ensure_run(resumed[1])
            elif not train or _needs_hub(text, self.folder):
                text = text.replace("rlinf train", "rlinf config show", 1)
                text = text.replace("rlinf sft", "rlinf config show --algo sft", 1)
        done = self._shell(text)
        told = done.stdout + done.stderr
        assert done.returncode == (2 if refused else 0), f"$ {text}\n{told[-4000:]}"
        for line in command.expected:
            pattern = ".*".join(re.escape(part) for part in line.rstrip().split("..."))
            assert re.search(rf"^{pattern}$", told, re.MULTILINE), f"$ {text}\nno {line!r} in\n{told}"

    def _ensure_run(self, output: str) -> None:
        if not (self.folder / output).exists():
            done = self._shell(f"rlinf train --output {output} {SHORT}")
            assert done.returncode == 0, done.stderr

    def _shell(self, text: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(self.site),
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
            timeout=120,
            check=False,
        )


def run_page(page: str, shell: Shell, train: bool) -> None:
    for part in parts_of((ROOT / page).read_text()):
        if not isinstance(part, Command):
            shell.write(*part)
        elif not part.text.startswith(tuple(SKIPPED)):
            shell.run(part, train)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_accepted(page, model, tmp_path):
    run_page(page, Shell(tmp_path, model), train=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page not in UNTRAINED])
def test_the_commands_of_a_page_train(page, model, tmp_path):
    run_page(page, Shell(tmp_path, model), train=True)
    assert list(tmp_path.glob("runs/*/metrics.jsonl"))


def test_commands_files_and_expected_output_are_read_from_a_page():
    page = (
        'x\n```yaml title="a.yaml"\nseed: 1\n```\n```bash\nrlinf a  # why\n\n# only why\n'
        "rlinf b k=#1\n```\n```console\n$ rlinf c\nerror: ... no\n$ rlinf d\n```\n```python\nignored\n```\n"
    )
    assert list(parts_of(page)) == [
        ("a.yaml", "seed: 1\n"),
        Command("rlinf a"),
        Command("rlinf b k=#1"),
        Command("rlinf c", ["error: ... no"]),
        Command("rlinf d"),
    ]


def _leaves(group: Group, path: str) -> Iterator[tuple[str, set[str]]]:
    """Path and long flags of every command."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from _leaves(command, f"{path} {name}")
        else:
            flags = {flag for option in command.params for flag in option.opts if flag.startswith("-")}
            yield f"{path} {name}", flags


LEAVES = dict(_leaves(get_command(app), "rlinf"))


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_has_its_section_with_every_flag_and_an_example(path):
    sections = re.split(r"^## ", (ROOT / "docs/cli.md").read_text(), flags=re.MULTILINE)
    texts = [text for text in sections if text.partition("\n")[0] == path]
    assert len(texts) == 1
    shared = {f"--{name.replace('_', '-')}" for name in SHARED} | {"-c", "-o"}
    own = LEAVES[path] - {"--help"} - (shared if path != "rlinf train" else set())
    assert [flag for flag in own if not re.search(rf"`{flag}\b", texts[0])] == []
    assert re.search(rf"^```bash\n(?:.*\n)*?{path}\b", texts[0], re.MULTILINE)


def test_no_section_is_about_a_command_that_there_is_not():
    headings = re.findall(r"^## (rlinf .*)$", (ROOT / "docs/cli.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(LEAVES)
