"""What evaluations say: estimates with their uncertainty, results as files, and comparisons."""
