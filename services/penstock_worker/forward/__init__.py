"""Backends: the ways to compute a forward pass."""
