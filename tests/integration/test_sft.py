"""Supervised fine-tuning: whole runs, beside a training loop of plain PyTorch and transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from rlinf_core.cli.app import app
from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.errors import ConfigError
from rlinf_core.roles.setup import build_model
from rlinf_core.run.compose import make_source
from rlinf_core.types import Sample

SMALL = ("data.noise=0", "train.prompts_per_step=8", "eval.samples=4", "eval.every=0", "trackers=[]")
PLAIN = ("optimizer.lr=1e-3", "optimizer.schedule=constant", "optimizer.grad_clip=0.5", "checkpoint.every=2")
QUICK = (*SMALL, *PLAIN)


def sft(run: Path, *words: str) -> dict[str, torch.Tensor]:
    done = CliRunner().invoke(app, ["sft", f"--output={run}", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return load_file(run / "export" / "model.safetensors")


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["train/imitation_loss"] for record in records[1:]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sft") / "run"
    sft(run, *QUICK, "--engine=inline", "--ranks=1", "train.steps=4")
    return run


def test_it_trains_what_a_loop_of_transformers_trains(whole: Path, tmp_path: Path) -> None:
    """The same rows in the same order; the loss of transformers itself over prompt and response, of which the
    prompt is not counted."""
    words = (*QUICK, "warm_start.steps=0", "--engine=inline")
    config = compose(Options(algo="sft", overrides=tuple(word for word in words if "--" not in word)))
    model = build_model(config)
    first = model.module(config.seed)
    model.export(iter(first.state_dict().items()), tmp_path / "first")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "first", dtype=torch.float32)
    betas, eps = config.optimizer.betas, config.optimizer.eps
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, betas=betas, eps=eps, weight_decay=0.0)
    source = make_source(config)
    found = []
    for step in range(4):
        rows: list[Sample] = source.train(step).first().collect()
        ids = [
            torch.cat([torch.tensor(row.prompt.token_ids), torch.tensor(row.response_ids)]) for row in rows
        ]
        width = max(map(len, ids))
        inputs = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in ids])
        labels = torch.full_like(inputs, -100)
        for i, row in enumerate(rows):
            labels[i, len(row.prompt.token_ids) : len(ids[i])] = torch.tensor(row.response_ids)
        attention = torch.stack([(torch.arange(width) < len(row)).long() for row in ids])
        loss = theirs(input_ids=inputs, attention_mask=attention, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()
        found.append(float(loss.detach()))
    assert losses(whole) == pytest.approx(found, rel=1e-5)
    ours = load_file(whole / "export" / "model.safetensors")
    for name, value in theirs.state_dict().items():
        if name in ours:
            torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=2e-5)


def test_a_resumed_run_ends_with_the_same_weights_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    sft(run, *QUICK, "--engine=inline", "--ranks=1", "train.steps=2")
    done = CliRunner().invoke(app, ["sft", f"--resume={run}", "--steps=4"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert losses(run) == losses(whole)
    ours, theirs = (load_file(each / "export" / "model.safetensors") for each in (run, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_two_ranks_train_what_one_trains(whole: Path, tmp_path: Path) -> None:
    sft(
        tmp_path / "run",
        *QUICK,
        "--ranks=2",
        "--mode=collocated",
        "train.steps=4",
        "train.micro_batch_tokens=32",
    )
    assert losses(tmp_path / "run") == pytest.approx(losses(whole), rel=1e-5)


def test_chats_are_imitated_in_their_last_message(tmp_path: Path) -> None:
    chats = [
        [{"role": "user", "content": f"{n}+1="}, {"role": "assistant", "content": str(n + 1)}]
        for n in range(30)
    ]
    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    keys = ("data.prompt_key=messages", "data.demonstration_key=messages", 'data.answer_key=""')
    model = ("--model=hf_lm", "model.preset=tiny-qwen2", "model.chat_template=always")
    words = (*model, f"--data={data}", *keys, "--reward=length", "--engine=inline", "--ranks=1")
    short = ("train.steps=1", "train.prompts_per_step=4", "eval.samples=1", "sampling.max_new_tokens=2")
    sft(tmp_path / "run", *words, *short, "trackers=[]")
    (sample, *_) = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    number = int(sample["prompt"].removeprefix("user: ").removesuffix("+1="))
    assert sample["response"] == str(number + 1)


def test_a_robot_without_recorded_episodes_is_told_how_to_record_some() -> None:
    words = ["sft", "--model=mlp_policy", "--simulator=gymnasium", "simulator.id=InvertedPendulum-v5"]
    with pytest.raises(ConfigError, match="`rlinf demos record` writes one"):
        CliRunner().invoke(app, words, catch_exceptions=False)
