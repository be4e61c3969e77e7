"""The flow-matching policy pi0 for rlinf."""
