"""Where a small OFT network starts: what pictures differ by is passed on, and patches know their places."""

from __future__ import annotations

import torch
from rlinf_model_openvla.oft.config import OpenVLAOFTConfig
from rlinf_model_openvla.oft.initial import place_patches
from rlinf_model_openvla.oft.model import OpenVLAOFT
from rlinf_model_openvla.vision import Encoder, EncoderShape

from rlinf_core.api import Space

SPACES = {
    "images/top": Space(shape=(64, 64, 3), low=0.0, high=255.0),
    "state": Space(shape=(2,), low=-1.0, high=1.0),
}


def test_positions_are_waves_of_column_and_row_by_hand() -> None:
    encoder = Encoder(EncoderShape(8, 2, 2, patch_size=4), 8)  # two rows of two patches
    place_patches(encoder)
    # angles of the second column or row: a quarter and a half turn; sines, cosines; of columns, then rows
    first = [0.0, 0.0, 1.0, 1.0]
    second = [1.0, 0.0, 0.0, -1.0]
    expected = torch.tensor([[*first, *first], [*second, *first], [*first, *second], [*second, *second]])
    assert torch.allclose(encoder.pos_embed[0], expected, atol=1e-6)


def test_two_pictures_that_differ_in_one_block_look_different_from_the_start() -> None:
    model = OpenVLAOFT(OpenVLAOFTConfig(preset="tiny", chunk=1, proprio="state"))
    model.bind(SPACES, Space(shape=(2,)))
    network = model.network(model.module(0))
    pictures = torch.full((2, 64, 64, 3), 120, dtype=torch.uint8)
    pictures[1, 20:28, 36:44] = torch.tensor([230, 26, 26], dtype=torch.uint8)
    seen = network.seen(model.pictures.pixels(pictures), torch.zeros(2, 2))
    apart_P = (seen[0] - seen[1]).norm(dim=-1) / seen[0].norm(dim=-1).mean()
    assert int(apart_P.argmax()) == 1 * 4 + 2  # the patch that the block is in
    assert float(apart_P.detach().max()) > 0.3
    assert all(not layer.bias.any() for layer in network.projector.children())
