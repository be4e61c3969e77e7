"""ManiSkill tasks as an rlinf simulator."""
