"""Media on the worker: items that have come, their encodings, and their places in steps."""
