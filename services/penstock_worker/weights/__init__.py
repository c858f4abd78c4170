"""Reading a checkpoint's tensors, by memory map, into the dtype that is computed with."""

from penstock_worker.weights.weights import Weights, open_weights

__all__ = ["Weights", "open_weights"]
