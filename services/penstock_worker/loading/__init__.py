"""From the engine core's Setup to a loaded model with its runner."""
