"""Models that give vectors or classes instead of text."""
