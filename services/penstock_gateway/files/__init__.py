"""/v1/files: what batches are read from, and what they leave."""
