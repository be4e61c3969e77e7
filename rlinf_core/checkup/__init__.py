"""What this machine and installation have for runs, part by part, with what to do about what they lack."""
