"""Datasets read from files: rows, splits, and the mistakes people make in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlinf_core.builtin.datasets.config import CsvConfig, HubConfig, JsonlConfig, ParquetConfig
from rlinf_core.builtin.datasets.files import Csv, Jsonl, Parquet
from rlinf_core.builtin.datasets.hub import HubDataset
from rlinf_core.errors import ConfigError, DataError


def write(path: Path, *records: Any) -> str:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return str(path)


def questions(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"q{i}", "answer": f"a{i}"} for i in range(count)]


def prompts(dataset: Jsonl) -> list[Any]:
    return [dataset[i].prompt for i in range(len(dataset))]


def test_the_last_tenth_is_held_out_and_in_no_training_row(tmp_path: Path) -> None:
    config = JsonlConfig(path=write(tmp_path / "d.jsonl", *questions(25)))
    train, evaluation = Jsonl(config, "train", 0), Jsonl(config, "eval", 0)
    assert prompts(train) == [f"q{i}" for i in range(23)]
    assert prompts(evaluation) == ["q23", "q24"]
    assert train[3].answer == "a3"


def test_holdout_and_eval_path_say_what_is_evaluated(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", *questions(5))
    other = write(tmp_path / "e.jsonl", {"prompt": "e", "answer": "f"})
    assert prompts(Jsonl(JsonlConfig(path, holdout=3), "eval", 0)) == ["q2", "q3", "q4"]
    assert len(Jsonl(JsonlConfig(path, eval_path=other), "train", 0)) == 5
    assert prompts(Jsonl(JsonlConfig(path, eval_path=other), "eval", 0)) == ["e"]


def test_keys_template_messages_and_the_rest_as_meta(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    rows = [{"question": "1+1", "chat": chat, "gold": 2, "how": "2!", "level": "easy"}] * 2
    path = write(tmp_path / "d.jsonl", *rows)
    keys = {"answer_key": "gold", "demonstration_key": "how", "holdout": 1}
    row = Jsonl(JsonlConfig(path, prompt_template="Q: {question}\nA:", **keys), "train", 0)[0]
    assert (row.prompt, row.answer, row.demonstration) == ("Q: 1+1\nA:", 2, "2!")
    assert row.meta["level"] == "easy"
    assert Jsonl(JsonlConfig(path, prompt_key="chat", **keys), "train", 0)[0].prompt == chat


CALL = {"type": "function", "function": {"name": "add", "arguments": {"terms": "1+1"}}}
TURNS = [
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "It is 2."},
]


def test_a_chat_may_end_with_several_turns_between_which_tools_answer(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "1+1?"}]
    told = {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}  # type: ignore[dict-item]
    written = [{**TURNS[0], "content": None, "tool_calls": [{"function": told}]}, *TURNS[1:]]
    path = write(tmp_path / "d.jsonl", *[{"chat": asked + written}] * 2)
    config = JsonlConfig(path, prompt_key="chat", demonstration_key="chat", answer_key="", holdout=1)
    row = Jsonl(config, "train", 0)[0]
    assert (row.prompt, row.demonstration) == (asked, TURNS)
    path = write(tmp_path / "e.jsonl", *[{"prompt": "1+1?", "how": TURNS}] * 2)
    config = JsonlConfig(path, demonstration_key="how", answer_key="", holdout=1)
    assert Jsonl(config, "train", 0)[0].demonstration == TURNS


def test_a_call_without_a_name_is_refused_with_its_place(tmp_path: Path) -> None:
    turns = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{"}}]}]
    path = write(tmp_path / "d.jsonl", *[{"prompt": "1+1?", "how": turns}] * 2)
    with pytest.raises(
        DataError, match=r"line 1: 'how' holds the call .* a function with name and arguments"
    ):
        Jsonl(JsonlConfig(path, demonstration_key="how", answer_key=""), "train", 0)


def test_a_json_list_and_unusual_line_separators_are_read(tmp_path: Path) -> None:
    listed = tmp_path / "d.json"
    listed.write_text(json.dumps(questions(3), indent=1))
    assert prompts(Jsonl(JsonlConfig(str(listed)), "train", 0)) == ["q0", "q1"]
    odd = tmp_path / "odd.jsonl"
    odd.write_text(
        "\ufeff"
        + json.dumps({"prompt": "a\u2028b", "answer": ""}, ensure_ascii=False)
        + '\r\n\r\n{"prompt": "c", "answer": ""}\r\n'
    )
    assert prompts(Jsonl(JsonlConfig(str(odd)), "train", 0)) == ["a\u2028b"]


BAD_LINES = [
    ('{"prompt": "x", "answer": 1', r"d.jsonl, line 3: not JSON"),
    ("[1]", r"line 3: expected a JSON object, found list"),
    ('{"question": "x", "answer": 1}', r"line 3: no key 'prompt' \(data.prompt_key\).*'question', 'answer'"),
    ('{"prompt": "x"}', r"line 3: no key 'answer' \(data.answer_key\); keys there: 'prompt'"),
    ('{"prompt": 7, "answer": 1}', r"line 3: 'prompt' must be text or a list of chat messages, not int"),
    ('{"prompt": "", "answer": 1}', r"line 3: 'prompt' must be text .* not ''"),
    (
        '{"prompt": ["hi"], "answer": 1}',
        r"line 3: 'prompt' holds 'hi'; a chat message has .* role",
    ),
]


@pytest.mark.parametrize(("line", "said"), BAD_LINES)
def test_an_unusable_row_is_named_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "x", "answer": 1}\n\n' + line + '\n{"prompt": "x", "answer": 1}\n')
    with pytest.raises(DataError, match=said):
        Jsonl(JsonlConfig(str(path)), "train", 0)


def test_missing_empty_tiny_and_binary_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    one = write(tmp_path / "one.jsonl", *questions(1))
    for path, said in [
        (str(tmp_path / "no.jsonl"), "does not exist"),
        (str(tmp_path), "is not a file"),
        (str(tmp_path / "empty.jsonl"), "has no rows"),
        (str(tmp_path / "binary.jsonl"), "is not UTF-8 text"),
        (one, "has 1 rows, of which 1 would be held out .* data.eval_path"),
    ]:
        with pytest.raises(DataError, match=said):
            Jsonl(JsonlConfig(path), "train", 0)


def test_a_template_names_the_key_it_misses(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", *questions(3))
    with pytest.raises(DataError, match=r"prompt_template names 'task'; keys there: 'prompt', 'answer'"):
        Jsonl(JsonlConfig(path, prompt_template="{task}"), "train", 0)
    with pytest.raises(DataError, match="cannot be filled"):
        Jsonl(JsonlConfig(path, prompt_template="{prompt"), "train", 0)


def test_the_fingerprint_follows_the_content_and_not_the_name(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", *questions(4))
    same = write(tmp_path / "b.jsonl", *questions(4))
    changed = write(
        tmp_path / "c.jsonl", *questions(2), {"prompt": "q2", "answer": "other"}, {"prompt": "q3"}
    )
    marks = [
        Jsonl(JsonlConfig(path, answer_key=""), "train", 0).fingerprint() for path in (first, same, changed)
    ]
    assert marks[0] == marks[1] != marks[2]


def test_csv_reads_quoted_newlines_and_names_ragged_lines(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text('prompt;answer\n"two\nlines";1\nq;2\n')
    dataset = Csv(CsvConfig(str(path), delimiter=";"), "train", 0)
    assert (dataset[0].prompt, dataset[0].answer) == ("two\nlines", "1")
    path.write_text("prompt,answer\nq,1\nr\n")
    with pytest.raises(DataError, match=r"d.csv, line 3: the number of cells differs from the 2 columns"):
        Csv(CsvConfig(str(path)), "train", 0)
    with pytest.raises(ConfigError, match="delimiter"):
        CsvConfig(str(path), delimiter="")


def test_parquet_rows_equal_the_records_written(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "d.parquet"
    chat = [{"role": "user", "content": "hi"}]
    records = [{"prompt": chat, "answer": i} for i in range(3)]
    parquet.write_table(arrow.Table.from_pylist(records), path)
    dataset = Parquet(ParquetConfig(str(path)), "train", 0)
    assert (len(dataset), dataset[1].prompt, dataset[1].answer) == (2, chat, 1)
    path.write_text("no parquet")
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        Parquet(ParquetConfig(str(path)), "train", 0)


def test_hub_datasets_saved_on_disk_are_read_by_split(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(questions(4))
    datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(str(tmp_path / "d"))
    config = HubConfig(path=str(tmp_path / "d"), eval_split="test")
    assert len(HubDataset(config, "train", 0)) == 4
    assert prompts(HubDataset(config, "eval", 0)) == ["q0"]
    with pytest.raises(DataError, match="no split 'dev'; there are: train, test"):
        HubDataset(HubConfig(path=str(tmp_path / "d"), eval_split="dev"), "eval", 0)
    with pytest.raises(DataError, match="save_to_disk"):
        HubDataset(HubConfig(path=str(tmp_path)), "train", 0)
