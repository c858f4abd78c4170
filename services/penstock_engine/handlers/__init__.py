"""What each message from a front end or a worker does to the core's state."""
