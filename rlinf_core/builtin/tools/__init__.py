"""Tools that ship with the core."""
