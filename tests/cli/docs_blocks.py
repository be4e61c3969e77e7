"""What stands in the fenced blocks of the pages, and what is said above a block about running it.

Above a block may stand, as a comment that no reader of the page sees:

    <!-- not run: needs two machines -->             nothing of it runs
    <!-- not run, `pip install`: changes the tests' environment -->   its commands that start so do not run
    <!-- not trained: needs a GPU -->                its settings are checked, and it does not train
    <!-- nightly: trains for minutes -->             runs in the nightly tests alone; settings are checked
    <!-- tested by: tests/unit/x/test_y.py -->       runs there
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL = ("bash", "sh", "console")
DATA = ("json", "jsonl", "toml", "yaml")
PLAIN = ("text", "")  # formulas, layouts of folders, what a program printed
LANGUAGES = (*SHELL, *DATA, *PLAIN, "python")
NOT_RUN, NOT_TRAINED, NIGHTLY, ELSEWHERE = WORDS = ("not run", "not trained", "nightly", "tested by")

FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ABOVE = re.compile(r"(?:^<!-- .* -->\n)+\Z", re.MULTILINE)
MARK = re.compile(rf"^<!-- ({'|'.join(WORDS)})(?:, `([^`]+)`)?: (\S.*) -->$", re.MULTILINE)
STARTS_AS_MARK = re.compile(rf"<!--\s*(?:{'|'.join(WORDS)})\b.*")


@dataclass(frozen=True)
class Mark:
    """A reason why a block, or its commands that start with `of`, are treated otherwise."""

    word: str
    of: str
    why: str


@dataclass
class Command:
    """One command of a page with the output that the page shows below it."""

    text: str
    expected: list[str] = field(default_factory=list)
    mark: str = ""


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its fence, from 1."""

    page: str
    line: int
    language: str
    title: str
    body: str
    marks: tuple[Mark, ...] = ()

    def mark(self, text: str = "") -> str:
        """The word of the mark that holds for a command, or for the whole block; "" = none."""
        holding = [mark for mark in self.marks if text.startswith(mark.of)]
        return max(holding, key=lambda mark: len(mark.of)).word if holding else ""

    def commands(self) -> list[Command]:
        """What is typed; a `\\` at the end of a line goes on below."""
        body = re.sub(r"[ \t]*\\\n\s*", " ", self.body)
        if self.language == "console":
            commands = _console(body)
        else:
            commands = [Command(line) for line in map(_without_comment, body.splitlines()) if line]
        for command in commands:
            command.mark = self.mark(command.text)
        return commands


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


def pages() -> list[str]:
    """Every page that shows code, but for translations, whose blocks are those of their originals."""
    globs = ("*.md", "recipes/**/*.md", "benchmarks/**/*.md", "docs/**/*.md", "plugins/*/*/*.md")
    found = sorted(str(path.relative_to(ROOT)) for glob in globs for path in ROOT.glob(glob))
    return [page for page in found if not page.startswith("docs/zh/")]


def blocks_of(page: str, text: str | None = None) -> Iterator[Block]:
    """The blocks of a page, in its order."""
    text = (ROOT / page).read_text() if text is None else text
    for match in FENCE.finditer(text):
        language, title, body = match.groups()
        above = ABOVE.search(text[: match.start()])
        marks = tuple(Mark(*found) for found in MARK.findall(above[0] if above else ""))
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, language, title or "", body, marks)
