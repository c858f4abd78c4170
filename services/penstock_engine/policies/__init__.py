"""Scheduling policies: the order of sequences, the share of each in a step, and which is
preempted."""
