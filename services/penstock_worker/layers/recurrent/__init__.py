"""Layers that keep a state for each sequence where attention keeps keys and values."""
