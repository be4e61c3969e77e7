"""Responses of several turns, in which a model calls tools."""
