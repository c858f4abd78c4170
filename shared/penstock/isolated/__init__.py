"""Processes that work on what strangers send: with bounds, and nothing of ours but a socket."""
