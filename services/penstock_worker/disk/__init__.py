"""The tier on disk: KV blocks in files, named by their contents."""
