"""The gateway alone: a null engine core before it, a cheap client behind it, and what it costs."""
