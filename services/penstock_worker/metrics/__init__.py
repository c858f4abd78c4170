"""What a worker counts, and the port at which Prometheus reads it."""
