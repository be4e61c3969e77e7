"""Reports on runs: one HTML file that needs no network."""
