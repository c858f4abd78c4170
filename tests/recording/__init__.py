"""A recording of what the system answers, and its replay: what no change of shape may change."""
