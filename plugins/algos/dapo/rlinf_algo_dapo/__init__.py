"""Decoupled clip and dynamic sampling policy optimisation for rlinf."""
