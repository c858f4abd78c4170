"""Processes are killed and frozen under streams, and every answer is compared with its twin."""
