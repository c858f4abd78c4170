"""Bidirectional encoders."""
