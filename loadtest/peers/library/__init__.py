"""Inference libraries beside this one, each in a process of its own environment, no server."""
