"""A tiny LLaVA that says what is in a picture: so many things of a shape and a colour."""

from pathlib import Path

FOLDER = Path(__file__).parent.parent / "tiny-seeing"
"""The trained checkpoint, in the hub's format."""
