"""Turns the engine core's Setup into a loaded model with its runner."""
