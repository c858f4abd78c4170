"""What a step should take on an H100, estimated from shapes: `python -m loadtest.gpu.estimate`."""
