"""Claim: a tiny vision-language model learns to count coloured blocks on two cores, in under four minutes.

The recipe `counting-blocks`. `accuracy_before_max` and `accuracy_after_min` are the worst of all seeds
(held-out, sampled), `seconds_max` the longest run, from the command to the export.
"""

from __future__ import annotations

from quickstart import measure

if __name__ == "__main__":
    measure(__doc__, 3, "--recipe", "counting-blocks")
