"""Paged KV memory: who owns which block. The tensors themselves are the worker's."""
