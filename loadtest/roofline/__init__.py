"""What the machine could do at best, and the least time that a model's work takes on it:
`python -m loadtest.roofline`."""
