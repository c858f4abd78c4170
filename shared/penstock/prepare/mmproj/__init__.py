"""What a GGUF model sees or hears with, of a file of its own: llama.cpp's mmproj."""

from penstock.prepare.mmproj.reading import EARS, KINDS, read_mmproj

__all__ = ["EARS", "KINDS", "read_mmproj"]
