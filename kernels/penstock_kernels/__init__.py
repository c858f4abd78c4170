"""Compute kernels. `reference` is slow, obvious torch; `cpu` (C++) and `triton` (CUDA) share its
meaning."""
