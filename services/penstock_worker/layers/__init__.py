"""Layers that model families are composed of. Plain objects over tensors, without state or
gradients."""
