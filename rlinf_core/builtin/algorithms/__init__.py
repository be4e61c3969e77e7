"""The algorithms that ship with the core."""
