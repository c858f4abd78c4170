"""What a step should take on an H100, reckoned from shapes: `python -m loadtest.gpu.reckon`."""
