"""The pages keep their word: what they show runs or says why not, and every command and flag is on its page.

Commands of ```` ```bash ```` blocks and of lines that start with `$ ` in ```` ```console ```` blocks run in
the order of the page, in a folder with the files that pages take for granted. Lines below a `$ ` line are
its expected output, `...` standing for anything. A block with a title is a file of that name; Python without
one is a program; YAML is accepted as settings, plan, profile or cluster. `docs_blocks` says how a block is
marked that cannot run.

The settings of a training are checked as they are, and it runs cut short by settings added at its end
(`docs_runs`). Commands are forks of one process that has imported what they need (`docs_warm`); the nightly
tests start each one anew. A page's own package is installed into a folder on the path.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import Group
from typer.main import get_command

from rlinf_core.cli.app import app
from rlinf_core.cli.options import SHARED
from rlinf_core.plugins import plugins
from rlinf_core.plugins.kinds import OBSERVERS, SPECS

sys.path.insert(0, str(Path(__file__).parent))
from docs_blocks import (
    ELSEWHERE,
    LANGUAGES,
    MARK,
    NIGHTLY,
    NOT_RUN,
    PLAIN,
    ROOT,
    STARTS_AS_MARK,
    Block,
    Command,
    blocks_of,
    pages,
)
from docs_shell import Shell, environment_of_pages
from docs_warm import Warm

BLOCKS = {page: list(blocks_of(page)) for page in pages()}
PAGES = [page for page, blocks in BLOCKS.items() if blocks]
SHOWN = [block for blocks in BLOCKS.values() for block in blocks if block.language not in PLAIN]


def _name(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny model as `save_pretrained` would leave it."""
    spec = plugins().get("models", "hf_lm")
    made = spec.load()(spec.config(preset="tiny-qwen2"))
    path = tmp_path_factory.mktemp("model") / "my-model"
    made.export(iter(made.module(0).state_dict().items()), path)
    return path


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    """What commands are forks of."""
    with Warm(environment_of_pages()) as made:
        yield made


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs(page, model, warm, tmp_path):
    Shell(tmp_path, model, warm).try_page(BLOCKS[page])


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs_in_processes_of_its_own(page, model, tmp_path):
    Shell(tmp_path, model, None).try_page(BLOCKS[page])


@pytest.mark.parametrize("page", BLOCKS)
def test_every_block_is_seen_and_says_what_it_is(page):
    text = (ROOT / page).read_text()
    assert len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(BLOCKS[page])
    assert [_name(block) for block in BLOCKS[page] if block.language not in LANGUAGES] == []
    typed = [
        _name(block)
        for block in BLOCKS[page]
        if block.language in PLAIN and re.search(r"^(\$ |rlinf |pip |python )", block.body, re.MULTILINE)
    ]
    assert typed == [], "commands belong into ```bash, or ```console with what they print"


@pytest.mark.parametrize("page", BLOCKS)
def test_every_mark_is_of_a_block_and_of_something_in_it(page):
    written = STARTS_AS_MARK.findall((ROOT / page).read_text())
    taken = [mark for block in BLOCKS[page] for mark in block.marks]
    assert len(written) == len(taken), "write <!-- not run: WHY --> directly above the block"
    for block in BLOCKS[page]:
        starts = [mark.of for mark in block.marks if mark.of]
        idle = [s for s in starts if not any(each.text.startswith(s) for each in block.commands())]
        assert idle == [], f"{_name(block)}: no command starts so"


@pytest.mark.parametrize("block", [each for each in SHOWN if each.title], ids=_name)
def test_a_file_of_a_page_is_used_there(block):
    path = Path(block.title)
    package = path.parts[0] if len(path.parts) > 1 else path.stem
    others = "".join(each.body for each in BLOCKS[block.page] if each is not block)
    assert block.mark() or block.language == "yaml" or package in others, "no command or program takes it"


@pytest.mark.parametrize("block", [each for each in SHOWN if each.mark() == ELSEWHERE], ids=_name)
def test_the_test_that_a_block_names_is_about_its_page(block):
    (path,) = [mark.why for mark in block.marks]
    assert Path(block.page).stem in (ROOT / path).read_text()


@pytest.mark.parametrize("block", [each for each in SHOWN if each.language == "python"], ids=_name)
def test_python_of_a_page_is_python(block):
    ast.parse(block.body)


@pytest.mark.parametrize("block", [each for each in SHOWN if each.language in ("json", "jsonl")], ids=_name)
def test_json_of_a_page_is_an_object_a_line(block):
    assert all(isinstance(json.loads(line), dict) for line in block.body.splitlines())


@pytest.mark.parametrize("block", [each for each in SHOWN if each.language == "toml"], ids=_name)
def test_toml_of_a_page_offers_plugins(block):
    groups = tomllib.loads(block.body)["project"]["entry-points"]
    assert groups.keys() <= {f"rlinf.{kind}" for kind in (*SPECS, OBSERVERS)}


def test_commands_files_and_expected_output_are_read_from_a_page():
    page = (
        'x\n```yaml title="a.yaml"\nseed: 1\n```\n<!-- not run, `rlinf b`: why not -->\n```bash\n'
        "rlinf a  # why\n\n# only why\nrlinf b k=#1 \\\n    more\n```\n```console\n$ rlinf c\nerror: ... no\n"
        "$ rlinf d\n```\nmore\n\n<!-- a comment -->\n<!-- nightly: waits -->\n```python\nignored\n```\n"
    )
    found = list(blocks_of("a page", page))
    assert [(block.language, block.title, block.line) for block in found] == [
        ("yaml", "a.yaml", 2),
        ("bash", "", 6),
        ("console", "", 13),
        ("python", "", 22),
    ]
    assert found[1].commands() == [Command("rlinf a"), Command("rlinf b k=#1 more", mark=NOT_RUN)]
    assert found[2].commands() == [Command("rlinf c", ["error: ... no"]), Command("rlinf d")]
    assert [block.mark() for block in found] == ["", "", "", NIGHTLY]


def test_the_mark_that_says_most_of_a_command_holds():
    (block,) = blocks_of(
        "a page", "<!-- nightly: x -->\n<!-- not run, `rlinf a b`: y -->\n```bash\nrlinf a b\nrlinf a\n```\n"
    )
    assert [command.mark for command in block.commands()] == [NOT_RUN, NIGHTLY]


def test_a_comment_further_up_is_no_mark():
    (block,) = blocks_of("a page", "<!-- nightly: waits -->\n\n```python\n```\n")
    assert block.marks == ()
    assert MARK.findall("<!-- not run -->") == []
    assert STARTS_AS_MARK.findall("<!-- not run -->") == ["<!-- not run -->"]


def test_a_fork_has_a_folder_an_environment_and_an_end_of_its_own(warm, tmp_path):
    program = "import os, sys\nprint(os.getcwd(), os.environ['HOME'], sys.argv[1:])\nsys.exit('no more')\n"
    (tmp_path / "program.py").write_text(program)
    here = {**environment_of_pages(), "PYTHONPATH": "", "HOME": "elsewhere"}
    done = warm.run(["python", "program.py", "a"], tmp_path, here)
    assert (done.returncode, done.stderr) == (1, "no more\n")
    assert done.stdout == f"{tmp_path} elsewhere ['a']\n"


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
