"""Compute kernels. `reference` is slow, obvious torch; faster backends share its signatures."""
