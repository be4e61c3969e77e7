"""Numerics of reinforcement learning: pure functions on tensors, in float32, with masks."""
