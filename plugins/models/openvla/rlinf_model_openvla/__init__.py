"""OpenVLA for rlinf."""
