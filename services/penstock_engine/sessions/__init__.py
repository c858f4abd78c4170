"""The peers of the core: front ends, workers and their ranks, and what is to be sent to them."""
