"""Blocks that model families are made of. Plain objects over tensors; no state, no gradients."""
