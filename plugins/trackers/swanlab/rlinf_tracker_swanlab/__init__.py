"""The tracker `swanlab`."""
