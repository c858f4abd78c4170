"""Pages of the reference that are made from code, and the command that makes them."""
