"""Tokens that are drafted ahead of the model, which checks them in one step."""
