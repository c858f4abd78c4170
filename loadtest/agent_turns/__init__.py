"""Conversations of agents, turn by turn: what each turn finds of its prompt in the cache."""
