"""LIBERO's suites of household tasks as an rlinf simulator."""
