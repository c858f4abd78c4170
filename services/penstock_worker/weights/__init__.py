"""Reading a checkpoint's tensors, by memory map, into the dtype that is computed with."""

from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.weights import Weights

__all__ = ["Weights", "open_weights"]
