"""The forward pass by the CPU kernels."""
