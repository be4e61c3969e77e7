"""REINFORCE++ for rlinf."""
