"""Meta-World tasks as an rlinf simulator."""
