"""Other servers beside this one, under the same load."""
