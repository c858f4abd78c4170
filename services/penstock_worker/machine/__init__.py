"""The machine that the worker runs on: processors, memory, and whether they are fit for it."""
