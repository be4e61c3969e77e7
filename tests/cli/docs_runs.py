"""How trainings of pages are cut short: they go through everything, and leave later commands something to
work on."""

from __future__ import annotations

import re
from pathlib import Path

from docs_blocks import ROOT

TRAINS = ("rlinf train", "rlinf sft")
OF_RUNS = ("rlinf export", "rlinf eval", "rlinf compare", "rlinf report", "rlinf replay")
OF_TEXT = "sampling.max_new_tokens=4"
SHORT = f"train.steps=1 train.prompts_per_step=4 warm_start.steps=0 eval.samples=4 eval.every=0 {OF_TEXT}"
PLACED = re.compile(r"--mode\b|--ranks [2-9]|\b(mode|placement|plan)\b[.=]")  # on two devices
SOLVABLE = (  # for what takes groups that differ only: a model that never succeeds has none
    "data.digits=2 warm_start.steps=40 warm_start.batch_size=32 train.prompts_per_step=1 "
    "sampling.max_new_tokens=8"
)
LONG = ("gymnasium", "metaworld")  # simulators of long episodes, which can be cut
EPISODES = 2  # recorded, at most
RECIPES = ROOT / "rlinf_core/config/recipes"


def composed(text: str) -> str:
    """The command that checks the settings of a training and starts nothing."""
    text = text.replace("rlinf train", "rlinf config show", 1)
    return text.replace("rlinf sft", "rlinf config show --algo sft", 1)


def runs_before(text: str) -> list[str]:
    """The folders of runs that have to be there."""
    if text.startswith(OF_RUNS):
        return [each for each in re.sub(r"(?:--output|-o) \S+", "", text).split() if each.startswith("runs/")]
    return re.findall(r"--resume (\S+)", text)


def output_of(text: str) -> str:
    """The folder that a training writes, as a pattern where the command names none."""
    named = re.search(r"(?:--output|--resume) (\S+)", text)
    return named[1] if named else "runs/*"


def shortened(text: str, folder: Path, *, inline: bool) -> str:
    """A command of a page, in the folder that has the page's files; `inline`: in one process if it can be."""
    if text.startswith("rlinf eval"):
        return f"{text} {_places(text, inline)}"
    if text.startswith("rlinf demos record"):
        return re.sub(r"--episodes (\d+)", lambda found: f"--episodes {min(int(found[1]), EPISODES)}", text)
    if not text.startswith(TRAINS):
        return text
    if "--resume" in text:
        return f"{text} train.steps=2"
    short = f"{SHORT} {_places(text, inline)}"
    if simulator := _simulator(text, folder):
        short = short.replace(OF_TEXT, "video.episodes=1")
        short += " simulator.max_episode_steps=8" if simulator in LONG else ""
    elif inline:
        short += " reward_pool.workers=0"
    if "--algo dapo" in text:
        short += f" {SOLVABLE}"
    if "train.mini_batches" not in text:
        short += " train.mini_batches=1"
    return f"{text} {short}"


def _places(text: str, inline: bool) -> str:
    """On one device, or on two in separate processes where the command says how components share them."""
    ranks = 2 if PLACED.search(text) else 1
    one = ranks == 1 or "--mode disaggregated" in text  # a component of two ranks is two processes
    return f"engine=inline ranks={ranks}" if inline and one and "--engine" not in text else f"ranks={ranks}"


def _simulator(text: str, folder: Path) -> str:
    """The simulator that a command trains in; "" = none."""
    named = [folder / name for name in re.findall(r"[\w./-]+\.yaml", text)]
    named += [RECIPES / f"{name}.yaml" for name in re.findall(r"--recipe (\S+)", text)]
    settings = "\n".join([text, *(path.read_text() for path in named if path.exists())])
    found = re.search(r"--simulator (\w+)|^simulator:\s*(?:{\s*name: |name: )?(\w+)", settings, re.MULTILINE)
    return (found[1] or found[2]) if found else ""
