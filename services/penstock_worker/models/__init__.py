"""Decoder models."""
