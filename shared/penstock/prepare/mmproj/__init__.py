"""What a GGUF model sees or hears with, of a file of its own: llama.cpp's mmproj."""

from penstock.prepare.mmproj.reading import KINDS, read_mmproj

__all__ = ["KINDS", "read_mmproj"]
