"""Token ids are what is generated and trained, with one beginning and a trained end (17 to 19)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rlinf_model_hf_lm.config import HFLMConfig
from rlinf_model_hf_lm.model import HFLM

from rlinf_core.roles.step_update import StepUpdate
from rlinf_core.roles.update import Updater
from rlinf_core.types import Experience, Sample

LOGPROBS = frozenset({"logprobs"})
EOS = 2


# 17 and 18


@pytest.fixture
def merging_model(tmp_path: Path) -> Path:
    """A model whose tokenizer joins pairs of digits, so that digits drawn one by one are read back as
    pairs; its end token is its padding too."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", *"0123456789=", *(a + b for a in "0123456789" for b in "0123456789")]
    merges = [(a, b) for a in "0123456789" for b in "0123456789"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(tmp_path / "merging")
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(pieces),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            bos_token_id=1,
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
    ).save_pretrained(tmp_path / "merging")
    return tmp_path / "merging"


def test_ids_that_were_generated_are_the_ids_that_are_trained(
    tiny_run: Callable[..., Any], merging_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[list[int]] = []
    collate = HFLM.collate

    def watched(self: HFLM, rows: Sequence[Experience], width: int | None = None) -> Any:
        inputs = collate(self, rows, width)
        lengths_B = inputs["prompt_lengths"] + inputs["response_lengths"]
        trained.extend(ids[:n].tolist() for ids, n in zip(inputs["input_ids"], lengths_B, strict=True))
        return inputs

    monkeypatch.setattr(HFLM, "collate", watched)
    run = tiny_run(
        'model.preset=""',
        f"model.path={merging_model}",
        "algo=grpo",
        "algo.group_size=8",
        "train.skip_gradient_free=false",
    )
    processor = run.worker("actor").updater.model.processor()
    result = run.step(0)
    generated = [[*row.prompt.token_ids.tolist(), *row.response_ids.tolist()] for row in result.rows]
    assert sorted(trained) == sorted(generated)
    again = [processor.encode_response(row.text)[:-1] for row in result.rows]
    ends = [row.response_ids[-1] == EOS for row in result.rows]
    ids = [
        row.response_ids.tolist()[: -1 if end else None] for row, end in zip(result.rows, ends, strict=True)
    ]
    assert sum(one != other for one, other in zip(again, ids, strict=True)) > 8, "they do not round-trip"
    assert result.metrics["train/logprob_mismatch_max"] < 1e-4


def test_where_the_end_pads_too_the_end_is_trained_and_the_padding_is_not(
    updater: Callable[..., Updater], merging_model: Path, text_row: Callable[..., Sample]
) -> None:
    made = updater('model.preset=""', f"model.path={merging_model}", "algo=grpo", "algo.group_size=2")
    processor = made.model.processor()
    assert processor.pad_id in processor.eos_ids
    rows = [text_row([3, 13], [5, EOS], reward=1.0), text_row([3, 13], [5, 6, 7, 8], reward=0.0)]
    seen: list[torch.Tensor] = []
    loss = made.algorithm.loss

    def watched(outputs: Any, batch: Any) -> Any:
        outputs.logprobs_BT.register_hook(lambda gradient: seen.append(gradient.clone()))
        return loss(outputs, batch)

    made.algorithm.loss = watched  # type: ignore[method-assign]
    update = StepUpdate(made, 0)
    update.add(rows)
    update.finish()
    (gradient_BT,) = seen
    short = gradient_BT[gradient_BT[:, 0].argmin()]  # of the good row, whose log-probability is to grow
    assert (short != 0).tolist() == [True, True, False, False]
    assert short[1] == short[0]
    assert (gradient_BT != 0).sum() == 2 + 4


def test_a_demonstration_teaches_to_end_where_the_end_pads_too(
    tiny_run: Callable[..., Any], merging_model: Path
) -> None:
    run = tiny_run('model.preset=""', f"model.path={merging_model}", "algo=grpo", "optimizer.lr=1e-2")
    rows = run.source.warm.demonstrations(16)
    assert all(row.response_ids[-1] == EOS and row.mask[-1] for row in rows)
    actor = run.worker("actor")

    def of_ends() -> float:
        said_BT = actor.estimate(rows, LOGPROBS).logprobs_BT
        return float(np.mean([said_BT[i, len(row.mask) - 1] for i, row in enumerate(rows)]))

    before = of_ends()
    actor.imitate([rows] * 10)
    assert of_ends() > before + 1.0


# 19


TEMPLATES = {
    "none": "",
    "with BOS": "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}=",
    "without BOS": "{% for m in messages %}{{ m['content'] }}{% endfor %}=",
}


@pytest.mark.parametrize("adds", [True, False], ids=["the tokenizer adds one", "the tokenizer adds none"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_there_is_exactly_one_bos_before_and_none_after_the_prompt(
    merging_model: Path, adds: bool, template: str
) -> None:
    from tokenizers import processors
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(merging_model)
    if adds:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
    if TEMPLATES[template]:
        tokenizer.chat_template = TEMPLATES[template]
    tokenizer.save_pretrained(merging_model)
    mode = "always" if TEMPLATES[template] else "never"
    processor = HFLM(HFLMConfig(path=str(merging_model), chat_template=mode)).processor()  # type: ignore[arg-type]
    ids = processor.encode_prompt("1=2" if mode == "never" else [{"role": "user", "content": "1=2"}])
    closed = [4, 13, 5, *([] if mode == "never" else [13])]
    expected = [1, *closed] if adds or template == "with BOS" else closed
    assert ids == expected
    assert processor.encode_response("12") == [26, EOS]
