"""The worker: weights, KV cache, forward pass and sampling of one device. The one with torch."""
