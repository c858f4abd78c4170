"""Reads a checkpoint's tensors through a memory map, into the dtype of the computation."""
