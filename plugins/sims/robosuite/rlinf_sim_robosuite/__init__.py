"""robosuite tasks as an rlinf simulator."""
