"""The conformance checks find the faults they are for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlinf_core.api import (
    Advantages,
    Algorithm,
    AlgorithmNeeds,
    Dataset,
    LossTerms,
    ModelCapabilities,
    Reward,
    RewardResult,
)
from rlinf_core.errors import PluginError
from rlinf_core.plugins import AlgorithmSpec, DatasetSpec, ModelSpec, NoConfig, RewardSpec
from rlinf_core.testing.checks import run_checks
from rlinf_core.testing.fakes import LetterProcessor, TinyTextModel
from rlinf_core.testing.simple_backend import SimpleBackend, SimpleTrainer
from rlinf_core.testing.simple_rollout import SimpleRollout
from rlinf_core.testing.subject import Subject, subject
from rlinf_core.types import Row

NEEDS = AlgorithmNeeds(advantage_scope="batch", group_size=4)


class Sound(Algorithm):
    """Reward minus mean."""

    needs = NEEDS

    def advantages(self, batch):
        centred_B = batch.rewards_B - batch.rewards_B.mean()
        return Advantages(centred_B[:, None] * batch.mask_BT)

    def denominator(self, mask_BT):
        return float(mask_BT.sum())

    def loss(self, outputs, batch):
        logprobs_BT = torch.where(batch.mask_BT, outputs.logprobs_BT, 0.0)
        total = -(batch.advantages_BT * logprobs_BT).sum()
        return LossTerms(total, {"loss": (total.detach(), batch.mask_BT.sum())})


class MeanLoss(Sound):
    def loss(self, outputs, batch):
        terms = super().loss(outputs, batch)
        return replace(terms, total=terms.total / max(1, int(batch.mask_BT.sum())))


class ReadsPadding(Sound):
    def loss(self, outputs, batch):
        return LossTerms(-(batch.advantages_BT.mean() * outputs.logprobs_BT).sum())


class Unguarded(Sound):
    def advantages(self, batch):
        whitened_B = (batch.rewards_B - batch.rewards_B.mean()) / batch.rewards_B.std()
        return Advantages(whitened_B[:, None] * batch.mask_BT)


class UnmaskedAdvantages(Sound):
    def advantages(self, batch):
        return Advantages(batch.rewards_B[:, None].expand_as(batch.logprobs_BT).clone())


class LyingAboutGradients(Sound):
    def gradient_free(self, batch, advantages):
        return batch.rewards_B > 0.5


class BatchDenominator(Sound):
    def denominator(self, mask_BT):
        return float(mask_BT.sum()) + 1.0


class TensorState(Sound):
    def state_dict(self):
        return {"mean": torch.zeros(1)}


class OtherNeeds(Sound):
    needs = AlgorithmNeeds(group_size=2)


class MetricMeans(Sound):
    def loss(self, outputs, batch):
        return replace(super().loss(outputs, batch), metrics={"loss": (0.5, 1.0)})


def failed(cls: type, spec_type: type = AlgorithmSpec, **fields: object) -> dict[str, str]:
    """Name -> message of the checks that fail for a class of this module."""
    spec = spec_type(name="faulty", summary="", target=f"{__name__}:{cls.__name__}", **fields)
    made = Subject(spec, NoConfig())
    made.__dict__["cls"] = cls
    return {result.name: result.message for result in run_checks(made) if result.outcome == "failed"}


def failed_algorithm(cls: type) -> dict[str, str]:
    return failed(cls, needs=lambda _: NEEDS)


def test_a_sound_algorithm_passes():
    assert failed_algorithm(Sound) == {}


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (MeanLoss, "loss_is_a_sum"),
        (ReadsPadding, "masked_gradient"),
        (ReadsPadding, "padding"),
        (Unguarded, "equal_rewards"),
        (UnmaskedAdvantages, "advantages"),
        (LyingAboutGradients, "gradient_free"),
        (BatchDenominator, "denominator"),
        (TensorState, "state"),
        (OtherNeeds, "needs"),
        (MetricMeans, "metrics_add_up"),
    ],
)
def test_each_fault_of_an_algorithm_is_found(cls, check):
    assert f"check_algorithms_{check}" in failed_algorithm(cls)


class ForgetfulDataset(Dataset):
    def __init__(self, config, split, seed):
        super().__init__(config, split, seed)
        self.random = np.random.default_rng()

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return Row(prompt=str(self.random.integers(10**9)))

    def fingerprint(self):
        return str(id(self))


class Fragile(Reward):
    def score(self, items):
        return [RewardResult(float(item.response[0] == "2"), "great") for item in items]


class Unscored(Reward):
    def score(self, items):
        return [float("nan") if item.response.strip() == "" else 1.0 for item in items][:2]


class Limited(Reward):
    def score(self, items):
        return [RewardResult(0.0, "too long" if len(item.response) > 99 else "ok") for item in items]


def test_faults_of_datasets_and_rewards_are_found():
    assert set(failed(ForgetfulDataset, DatasetSpec)) == {
        "check_datasets_order",
        "check_datasets_fingerprint",
    }
    assert "raises IndexError" in failed(Fragile, RewardSpec)["check_rewards_junk"]
    assert "check_rewards_results" in failed(Fragile, RewardSpec)
    assert "2 results for 3 items" in failed(Unscored, RewardSpec)["check_rewards_count"]
    assert "scores nan" in failed(Unscored, RewardSpec)["check_rewards_junk"]
    assert "'too long' is not one of" in failed(Limited, RewardSpec)["check_rewards_results"]


class OffByOne(TinyTextModel):
    """Judges a token by the logits after it."""

    def policy_outputs(self, module, inputs, want, sampling=None):
        shifted = {**inputs, "prompt_lengths_B": inputs["prompt_lengths_B"] + 1}
        shifted["ids_BL"] = torch.nn.functional.pad(inputs["ids_BL"], (0, 1))
        return super().policy_outputs(module, shifted, want, sampling)


class Seedless(TinyTextModel):
    def module(self, seed=0):
        return super().module(int(torch.randint(10**6, ())))


class Headless(TinyTextModel):
    """Takes a wish for values and forgets it."""

    def add_value_head(self):
        pass


class Forgetful(Headless):
    """Has a head, and leaves its values out where nothing else is wanted."""

    def module(self, seed=0):
        module = super().module(seed)
        module.values = torch.nn.utils.skip_init(torch.nn.Linear, 16, 1)
        torch.nn.init.zeros_(module.values.bias)
        return module

    def value_head(self, module):
        return module.values

    def policy_outputs(self, module, inputs, want, sampling=None):
        outputs = super().policy_outputs(module, inputs, want, sampling)
        if "logprobs" in want and "values" in want:
            outputs.values_BT = outputs.logprobs_BT * module.values.bias
        return outputs


class SeeingLetters(LetterProcessor):
    def encode_with_images(self, prompt, images):
        return self.encode_prompt(prompt)


class Blind(TinyTextModel):
    """Takes images and never looks at them."""

    def processor(self):
        return SeeingLetters()


class DividesEach(SimpleTrainer):
    def accumulate(self, batch, loss, *want):
        rows = max(1, len(batch.mask_BT))
        return super().accumulate(batch, lambda o, b: LossTerms(loss(o, b).total / rows), *want)


class Dividing(SimpleBackend):
    trainer = DividesEach


class SharedGenerator(SimpleRollout):
    def draw(self, logits_1V, generator, sampling):
        return torch.multinomial(torch.softmax(logits_1V, -1), 1)[:, 0]


def test_faults_of_models_backends_and_rollouts_are_found():
    from rlinf_core.plugins import BackendSpec, RolloutSpec

    assert set(failed(OffByOne, ModelSpec)) == {"check_models_decoder"}
    assert "check_models_seed" in failed(Seedless, ModelSpec)
    valued = ModelCapabilities(value_head=True)
    for cls, message in ((Headless, "value_head(module) is None"), (Forgetful, "values_BT is None")):
        assert message in failed(cls, ModelSpec, provides=valued)["check_models_values"]
    assert "images=True" in failed(Blind, ModelSpec)["check_models_images"]
    seeing = failed(Blind, ModelSpec, provides=ModelCapabilities(images=True))
    assert "are they read?" in seeing["check_models_images"]
    assert "check_backends_micro_batches" in failed(Dividing, BackendSpec)
    assert "check_rollouts_seeds" in failed(SharedGenerator, RolloutSpec)


def test_a_target_that_does_not_import_says_why():
    spec = RewardSpec(name="gone", summary="", target="rlinf_reward_gone.reward:Gone")
    with pytest.raises(PluginError, match="ModuleNotFoundError: No module named 'rlinf_reward_gone'"):
        _ = Subject(spec, NoConfig()).cls


def test_settings_without_default_must_be_given():
    with pytest.raises(PluginError, match=r"cannot be checked without target: give it in `example`"):
        subject("rewards", "python")
