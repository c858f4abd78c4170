"""What the engine core counts, and the port at which Prometheus reads it."""
