"""OpenVLA-OFT for rlinf: chunks of actions in one pass."""
