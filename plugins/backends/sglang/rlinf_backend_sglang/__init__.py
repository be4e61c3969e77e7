"""Rollout by SGLang, in a process of its own environment."""
