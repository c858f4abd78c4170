"""What operators tell a running model."""
