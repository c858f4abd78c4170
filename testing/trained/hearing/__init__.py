"""A tiny Whisper that hears spoken digits, made by a synthesiser of our own."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent.parent / "tiny-hearing"
"""The checkpoint, as a folder of the hub."""
