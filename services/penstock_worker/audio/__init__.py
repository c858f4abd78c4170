"""What a model hears with: a tower over spectrograms."""
