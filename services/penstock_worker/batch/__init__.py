"""The sequences between steps, and what a step is made of."""
