"""Writes down all that a core is told, and replays it."""
