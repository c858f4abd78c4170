"""Ways to compute a step."""
