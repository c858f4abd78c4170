"""How many tokens are drafted, by what was right before and what steps cost."""
