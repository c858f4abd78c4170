"""Adapters of low rank: loading them beside the steps, and which rows of a batch have which."""
