"""A request, its sequences, and what happens to one of them alone."""
