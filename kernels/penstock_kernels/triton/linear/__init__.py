"""Products of activations and weights, by the weights' format."""
