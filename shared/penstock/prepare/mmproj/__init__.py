"""A GGUF model's vision and audio towers, in a file of their own: llama.cpp's mmproj."""

from penstock.prepare.mmproj.reading import EARS, KINDS, read_mmproj

__all__ = ["EARS", "KINDS", "read_mmproj"]
