"""Streams whose answers are compared with those of undisturbed twins."""
