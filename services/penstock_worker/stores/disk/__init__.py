"""KV blocks in files."""
