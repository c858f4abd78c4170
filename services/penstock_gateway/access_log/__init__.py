"""A line for each request that was answered."""
