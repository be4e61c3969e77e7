"""Coloured blocks on a table as an rlinf simulator."""
