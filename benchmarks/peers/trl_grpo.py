"""The peer's side of `grpo_vs_trl.py`: TRL's GRPOTrainer on a job file; runs in the peers' environment."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""


sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """As the other side scores."""
    from partial_credit import credit

    return [credit(text, wanted) for text, wanted in zip(completions, answer, strict=True)]


def build(job: dict[str, Any]) -> Any:
    """A GRPOTrainer for the job."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(job["threads"])
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rows = [json.loads(line) for line in Path(job["data"]).read_text().splitlines()]
    random.Random(0).shuffle(rows)
    generation = {"min_new_tokens": job["max_new_tokens"]} if job["uniform"] else {}
    config = GRPOConfig(
        output_dir=job["output"],
        use_cpu=True,
        bf16=job["bf16"],
        per_device_train_batch_size=job["prompts"] * job["group_size"] // world,
        gradient_accumulation_steps=1,
        num_generations=job["group_size"],
        max_completion_length=job["max_new_tokens"],
        max_steps=job["steps"],
        learning_rate=job["lr"],
        beta=0.0,
        temperature=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        gradient_checkpointing=False,
        disable_tqdm=True,
        generation_kwargs=generation,
        seed=0,
    )

    class Timer(TrainerCallback):  # type: ignore[misc]
        """Wall time of every step, generation included."""

        def __init__(self) -> None:
            self.marks: list[float] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.marks.append(time.perf_counter())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.marks.append(time.perf_counter())

    timer = Timer()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        callbacks=[timer],
    )
    trainer.timer = timer
    return trainer


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Step seconds, mean response length and rewards of the run."""
    trainer = build(job)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "completions/mean_length" in entry]
    marks = trainer.timer.marks
    return {
        "step_s": [after - before for before, after in itertools.pairwise(marks)],
        "mean_length": [entry["completions/mean_length"] for entry in logs],
        "reward": [entry["reward"] for entry in logs],
    }


def loss(job: dict[str, Any]) -> dict[str, Any]:
    """The loss TRL computes on one given batch."""
    import torch

    trainer = build(job)
    batch = {name: torch.tensor(value) for name, value in job["batch"].items()}
    batch["num_items_in_batch"] = batch["completion_mask"].sum()
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return {"loss": float(trainer.compute_loss(trainer.model, batch))}


def main() -> None:
    """`trl_grpo.py JOB.json RESULT.json`."""
    job = json.loads(Path(sys.argv[1]).read_text())
    result = loss(job) if "batch" in job else measure(job)
    if os.environ.get("RANK", "0") == "0":
        Path(sys.argv[2]).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads sometimes abort the interpreter's own way out


if __name__ == "__main__":
    main()
