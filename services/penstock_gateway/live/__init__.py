"""GET /live: the live view's data, as server-sent events."""
