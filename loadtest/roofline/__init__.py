"""What a machine and a model allow: measured limits, and the bytes and operations of a step."""
