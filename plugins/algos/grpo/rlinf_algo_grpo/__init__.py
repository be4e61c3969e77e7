"""Group-relative policy optimisation for rlinf."""
