"""Numerics of reinforcement learning: pure functions on tensors, at least in float32, with masks."""
