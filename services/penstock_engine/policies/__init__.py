"""Choices that a deployment may want to make otherwise: each a small object with one method."""
