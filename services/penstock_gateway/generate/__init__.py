"""What the endpoints that generate text share, from prompt to reply."""
