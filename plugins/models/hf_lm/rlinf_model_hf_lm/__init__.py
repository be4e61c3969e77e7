"""Causal language models of the transformers library as an rlinf model."""
