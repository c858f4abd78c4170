"""KV blocks that are kept elsewhere, by their contents, and how steps go on meanwhile."""
