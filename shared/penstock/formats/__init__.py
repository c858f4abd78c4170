"""Readers of weight files: GGUF and safetensors. Memory-mapped, bounds-checked, numpy only."""
