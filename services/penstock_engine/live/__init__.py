"""The live view: what the engine core shows of itself to those who watch. See view."""
