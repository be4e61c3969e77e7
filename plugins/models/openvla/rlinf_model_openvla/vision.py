"""The two vision transformers and what is taken from them, under the weight names of openvla-7b.

Axes: B pictures, P patches, L tokens (prefix and patches), E embedding size, H heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_EPSILON = 1e-6


@dataclass(frozen=True)
class EncoderShape:
    """A vision transformer in the terms of timm, whose names weights have."""

    embed_dim: int
    depth: int
    num_heads: int
    mlp_ratio: float = 4.0
    patch_size: int = 14
    reg_tokens: int = 0
    class_token: bool = False
    layer_scale: bool = False
    attention_pool: bool = False

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        return self.reg_tokens + self.class_token


SHAPES = {  # by timm's name; the second pools by attention, which features do not pass
    "vit_large_patch14_reg4_dinov2": EncoderShape(
        1024, 24, 16, reg_tokens=4, class_token=True, layer_scale=True
    ),
    "vit_so400m_patch14_siglip_224": EncoderShape(1152, 27, 16, mlp_ratio=3.7362, attention_pool=True),
}


class FusedBackbone(nn.Module):
    """`[B, 6, S, S]` pictures, normalised for either encoder, to `[B, P, E1 + E2]` features."""

    def __init__(self, first: EncoderShape, second: EncoderShape, image_size: int) -> None:
        super().__init__()
        self.featurizer = Encoder(first, image_size)
        self.fused_featurizer = Encoder(second, image_size)
        self.embed_dim = first.embed_dim + second.embed_dim

    def forward(self, pixels: Tensor) -> Tensor:
        """Features of both, side by side."""
        first, second = pixels.split(3, dim=1)
        return torch.cat([self.featurizer(first), self.fused_featurizer(second)], dim=2)


class Encoder(nn.Module):
    """A vision transformer (Dosovitskiy et al. 2021) whose features are the patches after its second-to-last
    block. What lies behind that is kept for the sake of exported weights, and not trained."""

    def __init__(self, shape: EncoderShape, image_size: int) -> None:
        super().__init__()
        size, patches = shape.embed_dim, (image_size // shape.patch_size) ** 2
        self.shape = shape
        if shape.class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, size))
        if shape.reg_tokens:
            self.reg_token = nn.Parameter(torch.zeros(1, shape.reg_tokens, size))
        self.pos_embed = nn.Parameter(torch.zeros(1, patches, size))
        self.patch_embed = PatchEmbed(size, shape.patch_size)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(size, eps=_EPSILON)
        if shape.attention_pool:
            self.attn_pool = AttentionPool(shape)
        for part in [*self.blocks[-1:], self.norm, *([self.attn_pool] if shape.attention_pool else [])]:
            part.requires_grad_(False)

    def forward(self, pixels: Tensor) -> Tensor:
        """`[B, P, E]`."""
        hidden_BLE = self.patch_embed(pixels) + self.pos_embed
        prefix = [self.cls_token] if self.shape.class_token else []
        prefix += [self.reg_token] if self.shape.reg_tokens else []
        rows = [tokens.expand(len(pixels), -1, -1) for tokens in prefix]
        hidden_BLE = torch.cat([*rows, hidden_BLE], dim=1)
        for block in self.used_blocks():
            hidden_BLE = block(hidden_BLE)
        patches_BPE: Tensor = hidden_BLE[:, self.shape.prefix :]
        return patches_BPE

    def used_blocks(self) -> list[nn.Module]:
        """The blocks that features pass."""
        return list(self.blocks[:-1])

    def initialise(self) -> None:
        """Random tokens and positions; layers have drawn theirs."""
        for name in ("cls_token", "reg_token", "pos_embed"):
            if hasattr(self, name):
                nn.init.normal_(getattr(self, name), std=0.02)


class PatchEmbed(nn.Module):
    """One token a patch."""

    def __init__(self, size: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, size, patch, stride=patch)

    def forward(self, pixels: Tensor) -> Tensor:
        """Rows of patches from the top."""
        tokens_BPE: Tensor = self.proj(pixels).flatten(2).transpose(1, 2)
        return tokens_BPE


class Block(nn.Module):
    """Attention and perceptron behind layer norms, each with a scale where the encoder has one."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.embed_dim, eps=_EPSILON)
        self.attn = Attention(shape.embed_dim, shape.num_heads)
        self.ls1 = LayerScale(shape.embed_dim) if shape.layer_scale else nn.Identity()
        self.norm2 = nn.LayerNorm(shape.embed_dim, eps=_EPSILON)
        self.mlp = Perceptron(shape.embed_dim, int(shape.embed_dim * shape.mlp_ratio))
        self.ls2 = LayerScale(shape.embed_dim) if shape.layer_scale else nn.Identity()

    def forward(self, hidden_BLE: Tensor) -> Tensor:
        """The residual stream."""
        hidden_BLE = hidden_BLE + self.ls1(self.attn(self.norm1(hidden_BLE)))
        hidden_BLE = hidden_BLE + self.ls2(self.mlp(self.norm2(hidden_BLE)))
        return hidden_BLE


class Attention(nn.Module):
    """Every token attends to every token."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size)
        self.proj = nn.Linear(size, size)

    def forward(self, hidden_BLE: Tensor) -> Tensor:
        """`[B, L, E]`."""
        qkv = self.qkv(hidden_BLE).unflatten(2, (3, self.heads, -1))
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4).unbind()
        mixed_BHLD = functional.scaled_dot_product_attention(queries, keys, values)
        mixed_BLE: Tensor = self.proj(mixed_BHLD.transpose(1, 2).flatten(2))
        return mixed_BLE


class Perceptron(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(size, hidden)
        self.fc2 = nn.Linear(hidden, size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Same size."""
        found: Tensor = self.fc2(functional.gelu(self.fc1(hidden)))
        return found


class LayerScale(nn.Module):
    """A factor a channel (Touvron et al. 2021)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((size,), 0.1))

    def forward(self, hidden: Tensor) -> Tensor:
        """Scaled."""
        return hidden * self.scale_factor


class AttentionPool(nn.Module):
    """Weights of a pooling that features do not pass."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        size = shape.embed_dim
        self.latent = nn.Parameter(torch.zeros(1, 1, size))
        self.q = nn.Linear(size, size)
        self.kv = nn.Linear(size, 2 * size)
        self.proj = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size, eps=_EPSILON)
        self.mlp = Perceptron(size, int(size * shape.mlp_ratio))
