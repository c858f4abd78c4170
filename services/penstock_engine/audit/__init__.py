"""Checks of a core's invariants: for tests, and after an internal error."""
