"""Tiny models that were trained: the scripts, and the checkpoints."""
