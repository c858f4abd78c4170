"""API keys: who asks, what they may do, and how much of it in a minute."""
