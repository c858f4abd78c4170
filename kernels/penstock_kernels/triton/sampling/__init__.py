"""Turns logits into tokens and log-probabilities."""
