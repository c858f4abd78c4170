"""The commands' arguments, and what they run."""
