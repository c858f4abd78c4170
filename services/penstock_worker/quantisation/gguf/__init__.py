"""The quantised types of GGUF files."""
