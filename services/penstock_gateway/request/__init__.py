"""Turns a request's bytes into checked fields, sampling parameters and token ids."""
