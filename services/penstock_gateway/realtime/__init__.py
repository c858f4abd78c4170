"""Speech to text while it is spoken: /v1/realtime, over a WebSocket."""
