"""What a model is: its sizes, layers, towers and cache, as every process knows it."""
