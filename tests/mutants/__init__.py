"""Faults put in by hand, one at a time, and whether the tests find them."""
