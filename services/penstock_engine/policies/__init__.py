"""Scheduling policies: who is served first, who gets how much of a step, and who gives way."""
