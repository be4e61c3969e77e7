"""The trackers that ship with the core."""
