"""HTTP itself: the server, its bounds, errors, event streams, and the table of operations."""
