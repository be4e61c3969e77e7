"""Gymnasium environments as an rlinf simulator."""
