"""What the page of LIBERO shows is what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from rlinf_sim_libero.config import STEP_LIMITS

from rlinf_core.config.check import check
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.plugins import plugins

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/simulators-libero.md").read_text()
BLOCKS = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
TRAINING = [line.partition("  #")[0] for line in BLOCKS.splitlines() if line.startswith("rlinf train")]


@pytest.mark.parametrize("command", TRAINING)
def test_the_commands_of_the_page_pass_the_checks(command: str) -> None:
    words = shlex.split(command)[2:]
    if "model.path=DIRECTORY" in words:  # a checkpoint would have to be there
        of_checkpoint = ("model.path", "model.unnorm_key", "model.crop_area")
        words = [word for word in words if not word.startswith(of_checkpoint)] + ["model.preset=tiny"]
    flags = dict(zip(words[:6:2], words[1:6:2], strict=True))
    named = {flag.removeprefix("--"): name for flag, name in flags.items()}
    config = compose(Options(**named, overrides=tuple(words[6:])))  # type: ignore[arg-type]
    assert check(config, plugins()) == []
    assert config.simulator is not None
    assert config.simulator.name == "libero"


def test_the_page_tells_the_limits_of_all_suites() -> None:
    (told,) = re.findall(r"time limit \| as published.*?: (.*?) \|", PAGE)
    found = {f"libero_{name}": int(limit) for name, limit in re.findall(r"(\w+) (\d+)", told)}
    assert found == STEP_LIMITS
