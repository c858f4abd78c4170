"""Requests' bodies, prepared in processes of their own, whose work is bounded and can be ended."""
