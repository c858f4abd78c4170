"""Requests of which more or less can be foretold, and the streams that send them."""
