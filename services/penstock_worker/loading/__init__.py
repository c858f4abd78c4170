"""From the engine core's Setup to a runner."""
