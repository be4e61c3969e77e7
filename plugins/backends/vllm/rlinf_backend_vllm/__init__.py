"""Rollout by vLLM, in a process of its own environment."""
