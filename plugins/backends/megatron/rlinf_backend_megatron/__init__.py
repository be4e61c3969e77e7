"""The `megatron` training backend of rlinf."""
