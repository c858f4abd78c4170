"""What a card and its host should serve together, by arithmetic."""
