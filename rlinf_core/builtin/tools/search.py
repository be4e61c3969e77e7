"""Search in a local collection of passages."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlinf_core.api.tool import Tool
from rlinf_core.builtin.tools.config import SearchConfig
from rlinf_core.errors import ConfigError
from rlinf_core.optional import require

SUFFIXES = (".txt", ".md")


class Search(Tool):
    """Passages that share the rarest words with a question come first (BM25). The index is made at the first
    call."""

    config: SearchConfig
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "words to look for"}},
        "required": ["query"],
    }
    description = "Finds passages about a question"

    def __init__(self, config: SearchConfig) -> None:
        super().__init__(config)
        if not Path(config.path).exists():
            raise ConfigError(f"tool search: path {config.path} does not exist; name JSON lines or a folder")
        self._making = threading.Lock()
        self._passages: list[str] = []
        self._index: Any = None  # Any: of a library without types
        self._library = require("bm25s", "search", "tool search")

    def call(self, arguments: Mapping[str, Any]) -> str:
        """The best passages, a blank line between them."""
        with self._making:
            if self._index is None:
                self._make()
        asked = self._library.tokenize([str(arguments["query"])], show_progress=False)
        count = min(self.config.results, len(self._passages))
        found, scores = self._index.retrieve(asked, k=count, show_progress=False, n_threads=0)
        texts = [self._passages[i] for i, score in zip(found[0], scores[0], strict=True) if score > 0]
        return "\n\n".join(texts) or "nothing was found"

    def _make(self) -> None:
        self._passages = [text[: self.config.max_chars] for text in self._read()]
        if not self._passages:
            raise ConfigError(f"tool search: {self.config.path} holds no passages")
        index = self._library.BM25()
        index.index(self._library.tokenize(self._passages, show_progress=False), show_progress=False)
        self._index = index

    def _read(self) -> Iterator[str]:
        path = Path(self.config.path)
        if path.is_dir():
            for file in sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES):
                yield from filter(None, map(str.strip, file.read_text(errors="replace").split("\n\n")))
            return
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.strip():
                yield self._passage(line, number)

    def _passage(self, line: str, number: int) -> str:
        try:
            record = json.loads(line)
            title = record.get(self.config.title_key)
            text = str(record[self.config.text_key])
        except (ValueError, LookupError, AttributeError) as err:
            raise ConfigError(
                f"tool search: {self.config.path}, line {number}: not a JSON object with "
                f"{self.config.text_key!r} ({err}); set text_key"
            ) from err
        return f"{title}\n{text}" if title else text
