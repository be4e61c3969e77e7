"""The fsdp training backend and the hf rollout engine."""
