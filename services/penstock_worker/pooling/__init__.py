"""Models that compute vectors or classes instead of text."""
