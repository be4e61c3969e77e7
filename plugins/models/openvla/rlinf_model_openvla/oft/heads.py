"""What OFT adds to OpenVLA's network, under the names of its separate checkpoint files.

Axes: M decisions, C actions of a chunk, A dimensions the model writes, E hidden size, S state size.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

_BLOCKS = 2


class ActionHead(nn.Module):
    """One action of numbers from the states of its A slots, side by side."""

    def __init__(self, hidden_size: int, dimensions: int) -> None:
        super().__init__()
        self.model = ResidualPerceptron(hidden_size * dimensions, hidden_size, dimensions)

    def forward(self, states_MCE: Tensor) -> Tensor:
        """`[M, C, A]` for `[M, C, A * E]`."""
        actions_MCA: Tensor = self.model(states_MCE)
        return actions_MCA


class ResidualPerceptron(nn.Module):
    """Layers of which each adds to what came before it."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, hidden)
        self.mlp_resnet_blocks = nn.ModuleList(ResidualBlock(hidden) for _ in range(_BLOCKS))
        self.layer_norm2 = nn.LayerNorm(hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, states: Tensor) -> Tensor:
        """`[..., outputs]`."""
        hidden = functional.relu(self.fc1(self.layer_norm1(states)))
        for block in self.mlp_resnet_blocks:
            hidden = block(hidden)
        found: Tensor = self.fc2(self.layer_norm2(hidden))
        return found


class ResidualBlock(nn.Module):
    """A layer behind a norm, added to what it was given."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, size), nn.ReLU())

    def forward(self, hidden: Tensor) -> Tensor:
        """Same size."""
        added: Tensor = self.ffn(hidden)
        return hidden + added


class ProprioProjector(nn.Module):
    """A state as one token."""

    def __init__(self, state_size: int, hidden_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state_size, hidden_size)
        self.fc2 = nn.Linear(hidden_size, hidden_size)

    def forward(self, state_MS: Tensor) -> Tensor:
        """`[M, E]`."""
        token_ME: Tensor = self.fc2(functional.gelu(self.fc1(state_MS)))
        return token_ME
