"""Pictures on their way into a prompt: from a file's bytes to what a worker encodes. No torch."""
