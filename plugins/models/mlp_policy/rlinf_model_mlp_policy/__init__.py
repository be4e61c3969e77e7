"""Multilayer perceptron policies for rlinf."""
