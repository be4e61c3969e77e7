"""From the records of a file to rows: keys, templates, splits and the errors people make."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlinf_core.api.dataset import Dataset, Split
from rlinf_core.builtin.datasets.images import PictureFile, pictures_of
from rlinf_core.errors import DataError
from rlinf_core.types import Message, Row

Record = Mapping[str, Any]  # Any: cells hold whatever the user's data holds


class RecordDataset(Dataset):
    """Records in memory. Every record of the split is checked when the dataset is made."""

    def __init__(self, config: Any, split: Split, seed: int) -> None:
        super().__init__(config, split, seed)
        source = self.load()
        if not source.records:
            raise DataError(f"{source.name} has no rows")
        first, last = 0, len(source.records)
        if not source.is_split:
            border = last - holdout(last, config.holdout, source.name)
            first, last = (0, border) if split == "train" else (border, last)
        self._rows = [
            make_row(record, config, f"{source.name}, {where}")
            for where, record in source.records[first:last]
        ]
        self._pictures: list[tuple[PictureFile, ...]] = []
        if config.image_key:
            folder = Path(config.image_folder) if config.image_folder else source.folder
            self._pictures = [
                pictures_of(record, config.image_key, folder, f"{source.name}, {where}")
                for where, record in source.records[first:last]
            ]

    @abstractmethod
    def load(self) -> Source:
        """The records of this split, or those of both; raises `DataError` for unreadable ones."""

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        row = self._rows[index]
        if not self._pictures:
            return row
        return replace(row, images=tuple(picture.read() for picture in self._pictures[index]))

    def fingerprint(self) -> str:
        return digest(self._rows, [picture.identity() for row in self._pictures for picture in row])


@dataclass(frozen=True)
class Source:
    """Records with where each stands (`line 3`); `is_split` unless evaluation rows are yet to be held out."""

    name: str
    records: Sequence[tuple[str, Record]]
    is_split: bool
    folder: Path = Path()  # where relative paths of pictures start


def holdout(count: int, asked: int, what: str) -> int:
    """How many of the last rows are for evaluation; raises `DataError` if none is left to train on."""
    held_out = asked or max(1, min(512, count // 10))
    if held_out >= count:
        raise DataError(
            f"{what} has {count} rows, of which {held_out} would be held out for evaluation, leaving none to "
            "train on; set data.eval_path to other rows or lower data.holdout"
        )
    return held_out


def make_row(record: Record, config: Any, where: str) -> Row:
    """The row of one record; raises `DataError` that says where, what is there and what is missing."""
    prompt: str | list[Message]
    if config.prompt_template:
        prompt = _fill(config.prompt_template, record, where)
    else:
        prompt = _prompt(_cell(record, config.prompt_key, "data.prompt_key", where), config.prompt_key, where)
    answer = _cell(record, config.answer_key, "data.answer_key", where) if config.answer_key else None
    demonstration = None
    if config.demonstration_key and config.demonstration_key == config.prompt_key:
        prompt, demonstration = _dialogue(prompt, config.prompt_key, where)
    elif config.demonstration_key:
        told = _cell(record, config.demonstration_key, "data.demonstration_key", where)
        demonstration = _prompt(told, config.demonstration_key, where)
    used = {config.prompt_key, config.answer_key, config.demonstration_key, config.image_key}
    meta = {key: value for key, value in record.items() if key not in used}
    return Row(prompt=prompt, answer=answer, meta=meta, demonstration=demonstration)


def digest(rows: Sequence[Row], pictures: Sequence[str] = ()) -> str:
    """A digest of the rows' content and of what their pictures are known by."""
    sha = hashlib.sha256()
    for row in rows:
        sha.update(repr((row.prompt, row.answer, sorted(row.meta.items()), row.demonstration)).encode())
    for picture in pictures:
        sha.update(picture.encode())
    return sha.hexdigest()[:16]


def _cell(record: Record, key: str, setting: str, where: str) -> Any:
    if key not in record:
        there = ", ".join(map(repr, record)) or "none"
        raise DataError(f"{where}: no key {key!r} ({setting}); keys there: {there}")
    return record[key]


def _fill(template: str, record: Record, where: str) -> str:
    try:
        return template.format_map(record)
    except KeyError as err:
        there = ", ".join(map(repr, record)) or "none"
        raise DataError(f"{where}: data.prompt_template names {err}; keys there: {there}") from err
    except (ValueError, IndexError, AttributeError) as err:
        raise DataError(f"{where}: data.prompt_template {template!r} cannot be filled: {err}") from err


def _prompt(value: Any, key: str, where: str) -> str | list[Message]:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [_message(message, key, where) for message in value]
    shown = repr(value) if value in ("", None) else type(value).__name__
    raise DataError(f"{where}: {key!r} must be text or a list of chat messages, not {shown}")


def _dialogue(
    messages: str | list[Message], key: str, where: str
) -> tuple[list[Message], str | list[Message]]:
    """A chat that ends with what the assistant should say, and perhaps lets tools do before."""
    if isinstance(messages, str) or len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise DataError(
            f"{where}: {key!r} is both data.prompt_key and data.demonstration_key, so it must hold chat "
            "messages of which the last one is the assistant's"
        )
    first = len(messages) - 1
    while first > 1 and messages[first - 1]["role"] in ("assistant", "tool"):
        first -= 1
    turns = messages[first:]
    return messages[:first], turns if len(turns) > 1 else turns[0]["content"]


def _message(message: Any, key: str, where: str) -> Message:
    given: Record = message if isinstance(message, Mapping) else {}
    calls = given.get("tool_calls") or ()
    content = given.get("content", "" if calls else None)
    content = "" if calls and content is None else content
    if not isinstance(given.get("role"), str) or not isinstance(content, str):
        raise DataError(f"{where}: {key!r} holds {message!r}; a chat message has the texts role and content")
    told: dict[str, Any] = {str(name): str(value) for name, value in given.items() if value is not None}
    told |= {"content": content}
    return told | ({"tool_calls": [_call(each, key, where) for each in calls]} if calls else {})


def _call(call: Any, key: str, where: str) -> dict[str, Any]:
    """As the chat format of OpenAI has calls of tools; arguments may be JSON within a text."""
    try:
        function = call["function"]
        arguments = function.get("arguments") or {}
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        return {"type": "function", "function": {"name": str(function["name"]), "arguments": dict(arguments)}}
    except (LookupError, TypeError, ValueError, AttributeError) as err:
        raise DataError(
            f"{where}: {key!r} holds the call {call!r}; it has a function with name and arguments"
        ) from err
