"""Adapters that are loaded and unloaded while the server runs."""
