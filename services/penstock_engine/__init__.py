"""The engine core: admission, scheduling, KV blocks and request states. Nothing here loads
torch."""
