"""Proximal policy optimisation for rlinf."""
