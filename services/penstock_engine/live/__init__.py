"""The live view: what the engine core shows to those who watch it. See view."""
