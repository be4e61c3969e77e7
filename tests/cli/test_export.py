"""`rlinf export`: the policy of any checkpoint, as a model that transformers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlinf_core.config.compose import compose
from rlinf_core.config.options import Options
from rlinf_core.roles.actor import ActorWorker
from rlinf_core.worker import WorkerContext


def trained(saved: Any, step: int) -> torch.nn.Module:
    """The module of the trainer that has loaded a checkpoint."""
    actor = ActorWorker(WorkerContext(), compose(Options(config=(saved.output / "config.yaml",))))
    actor.trainer.load(saved.output / "checkpoints" / f"step_{step}" / "actor")
    module: torch.nn.Module = actor.trainer.policy.inner  # type: ignore[attr-defined]
    return module


def test_an_export_gives_the_logits_of_the_trained_policy_bit_for_bit(
    rlinf: Any, saved: Any, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    ids = torch.arange(12).view(2, 6)
    for step in (1, 2):
        ended = rlinf("export", saved.output, "--output", tmp_path / str(step), "--step", step)
        assert (ended.code, ended.out) == (0, f"policy of step {step} written to {tmp_path / str(step)}\n")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / str(step))
        with torch.no_grad():
            assert torch.equal(model(ids).logits, trained(saved, step)(input_ids=ids).logits)
    at_the_end = (saved.output / "export" / "model.safetensors").read_bytes()
    assert (tmp_path / "2" / "model.safetensors").read_bytes() == at_the_end


def test_what_cannot_be_exported_is_told(refused: Any, saved: Any, tmp_path: Path) -> None:
    to = ("--output", tmp_path / "out")
    assert "there is no run here" in refused("export", tmp_path, *to)
    assert "has no such checkpoint; there are latest, step_1, step_2" in refused(
        "export", saved.output, *to, "--step", "best"
    )
    assert "--format lerobot: model HFLM does not write it" in refused(
        "export", saved.output, *to, "--format", "lerobot"
    )
    assert "--step ../..: " in refused("export", saved.output, *to, "--step", "../..")
    assert "name another folder" in refused("export", saved.output, "--output", saved.output)
    assert "cannot be written: " in refused("export", saved.output, "--output", saved.data / "below")
    assert not (tmp_path / "out").exists()
